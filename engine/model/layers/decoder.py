"""The pre-norm decoder: x + attention(norm x), then x + feed-forward(norm x), from embedding to logits.

A layer is described by a `DecoderLayer`; what an architecture changes in it is a field here, never a second copy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.backend.base import Activation, Attention, Backend, DeltaNet, Mla, Moe, ShortConv, Weights
from engine.errors import BadModel
from engine.model.base import Hyper, Tensors, routed_experts
from engine.model.layers.attention import attention_weights
from engine.model.layers.delta_net import delta_net_weights
from engine.model.layers.mla import mla_weights

DENSE = {"gate": "ffn_gate.weight", "up": "ffn_up.weight", "down": "ffn_down.weight"}
_SHARED = {"gate_shared": "ffn_gate_shexp.weight", "up_shared": "ffn_up_shexp.weight", "down_shared": "ffn_down_shexp.weight"}
_SHORT_CONV = {"input": "shortconv.in_proj.weight", "conv": "shortconv.conv.weight", "output": "shortconv.out_proj.weight"}
_SHARED_GATE = {"router_shared": "ffn_gate_inp_shexp.weight"}


@dataclass(frozen=True)
class DecoderLayer:
    """What one layer is."""

    attention: Attention | Mla | DeltaNet | ShortConv
    moe: Moe | None = None  # None: a dense feed-forward
    activation: Activation = "swiglu"  # of a dense one
    head_norms: bool = False  # queries and keys are normed
    delta_net_weights: Callable[[Tensors, int], Weights] = delta_net_weights  # how a file stores those of a layer
    ffn_norm: str = "ffn_norm"
    post_norms: bool = False  # the output of both halves is normed too
    residual_scale: float = 1.0  # factor of the output of both halves


def decoder(backend: Backend, hyper: Hyper, tensors: Tensors, layers: Sequence[DecoderLayer], *,
            embedding_scale: float = 1.0, logit_scale: float = 1.0, soft_cap: float = 0.0,
            output_norm: str = "output_norm") -> None:
    """Record the whole trunk."""
    embedding, output = tensors["token_embd.weight"], tensors.head()
    if output.shape != embedding.shape:
        raise BadModel(f"{output.name}: its shape is {output.shape}, that of {embedding.name} is {embedding.shape}")
    x, eps = backend.embed(embedding, scale=embedding_scale), epsilon(hyper)
    for number, layer in enumerate(layers):
        x = decoder_layer(backend, x, number, tensors, layer, eps=eps)
    x = backend.norm(x, tensors[f"{output_norm}.weight"], eps=eps)
    backend.head(x, output, scale=logit_scale, soft_cap=soft_cap)


def epsilon(hyper: Hyper) -> float:
    """What root-mean-square norms add."""
    return hyper.number("attention.layer_norm_rms_epsilon", low=0.0)


def decoder_layer(backend: Backend, x: Any, number: int, tensors: Tensors, layer: DecoderLayer, *, eps: float) -> Any:
    """One layer on the residual stream x f32 [T, D]."""
    norms = tensors.block(number, {"attention": "attn_norm.weight", "ffn": f"{layer.ffn_norm}.weight"})
    posts = tensors.block(number, {"attention": "post_attention_norm.weight", "ffn": "post_ffw_norm.weight"}
                          if layer.post_norms else {})
    normed = backend.norm(x, norms["attention"], eps=eps)
    if isinstance(layer.attention, Mla):
        y = backend.mla(normed, layer.attention, mla_weights(tensors, number))
    elif isinstance(layer.attention, DeltaNet):
        y = backend.delta_net(normed, layer.attention, layer.delta_net_weights(tensors, number))
    elif isinstance(layer.attention, ShortConv):
        y = backend.short_conv(normed, layer.attention, tensors.block(number, _SHORT_CONV))
    else:
        weights = attention_weights(tensors, number, layer.attention, head_norms=layer.head_norms)
        y = backend.attention(normed, layer.attention, weights)
    if layer.post_norms:
        y = backend.norm(y, posts["attention"], eps=eps)
    x = backend.add(x, y, scale=layer.residual_scale)
    normed = backend.norm(x, norms["ffn"], eps=eps)
    if layer.moe is None:
        y = backend.feed_forward(normed, tensors.block(number, DENSE), activation=layer.activation)
    else:
        y = backend.moe(normed, layer.moe, {**routed_experts(tensors, number), **shared_expert(tensors, number)})
    if layer.post_norms:
        y = backend.norm(y, posts["ffn"], eps=eps)
    return backend.add(x, y, scale=layer.residual_scale)


def shared_expert(tensors: Tensors, number: int) -> dict:
    """Roles of a layer's shared expert and of its gate, none if the file has none."""
    if tensors.get(f"blk.{number}.ffn_down_shexp.weight") is None:
        return {}
    return tensors.block(number, _SHARED, _SHARED_GATE)

"""The plain pre-norm decoder layer: x + attention(norm x), then x + feed-forward(norm x)."""

from typing import Any

from engine.backend.base import Attention, Backend, Moe, Rope
from engine.model.base import Hyper, Tensors, routed_experts

_ATTENTION = {"q": "attn_q.weight", "k": "attn_k.weight", "v": "attn_v.weight", "output": "attn_output.weight"}
_BIASES = {"q_bias": "attn_q.bias", "k_bias": "attn_k.bias", "v_bias": "attn_v.bias", "output_bias": "attn_output.bias"}
_HEAD_NORMS = {"q_norm": "attn_q_norm.weight", "k_norm": "attn_k_norm.weight"}
_DENSE = {"gate": "ffn_gate.weight", "up": "ffn_up.weight", "down": "ffn_down.weight"}


def attention_spec(hyper: Hyper, tensors: Tensors, *, adjacent: bool) -> Attention:
    """Grouped-query attention from the common keys; rotary pairs (2i, 2i + 1) if `adjacent`."""
    heads = hyper.integer("attention.head_count")
    head_dim = hyper.integer("attention.key_length", hyper.integer("embedding_length") // heads)
    factors = tensors.get("rope_freqs.weight")
    return Attention(
        heads=heads, kv_heads=hyper.integer("attention.head_count_kv", heads), head_dim=head_dim,
        value_dim=hyper.integer("attention.value_length", head_dim), scale=head_dim**-0.5,
        eps=hyper.number("attention.layer_norm_rms_epsilon"),
        rope=Rope(hyper.integer("rope.dimension_count", head_dim), hyper.number("rope.freq_base", 10000.0), adjacent,
                  tuple(factors.data.view("<f4").tolist()) if factors else ()))


def decoder_layer(backend: Backend, x: Any, layer: int, tensors: Tensors, *, attention: Attention, moe: Moe | None,
                  head_norms: bool) -> Any:
    """One layer on the residual stream x f32 [T, D]; dense if the file has no experts for it."""
    norms = tensors.block(layer, {"attention": "attn_norm.weight", "ffn": "ffn_norm.weight"})
    weights = tensors.block(layer, {**_ATTENTION, **(_HEAD_NORMS if head_norms else {})}, _BIASES)
    x = backend.add(x, backend.attention(backend.norm(x, norms["attention"], eps=attention.eps), attention, weights))
    normed = backend.norm(x, norms["ffn"], eps=attention.eps)
    if moe is None:
        return backend.add(x, backend.feed_forward(normed, tensors.block(layer, _DENSE)))
    return backend.add(x, backend.moe(normed, moe, routed_experts(tensors, layer)))

"""`gemma4` (26B-A4B; dense E2B, E4B, 31B): sliding and full layers with heads of their own, the last ones reading the caches of
others; experts beside a dense feed-forward; a vector of its own for every layer and token; a factor behind every layer.

On full layers most rotary pairs stand still: the file divides their angles by 1e30.
"""

from typing import Any

from engine.backend.base import Attention, Backend, LayerInputs, Moe, Rope
from engine.errors import BadModel
from engine.gguf import Tensor
from engine.model.base import Hyper, Tensors, float_values, routed_experts
from engine.model.layers.attention import fused_projections, rope_spec
from engine.model.layers.decoder import DENSE, epsilon
from engine.model.layers.experts import moe_spec

_SOFT_CAP = 30.0  # of the logits, unless the file names one
_QUERIES = {"q": "attn_q.weight", "q_norm": "attn_q_norm.weight", "output": "attn_output.weight"}
_KEYS = {"k": "attn_k.weight", "k_norm": "attn_k_norm.weight"}
_VALUES = {"v": "attn_v.weight"}  # where there are none, keys before norm and rotation stand for them
_NORMS = {"attention": "attn_norm.weight", "behind_attention": "post_attention_norm.weight", "ffn": "ffn_norm.weight",
          "behind_ffn": "post_ffw_norm.weight"}
_EXPERT_NORMS = {"behind_dense": "post_ffw_norm_1.weight", "experts": "pre_ffw_norm_2.weight",
                 "behind_experts": "post_ffw_norm_2.weight", "router": "ffn_gate_inp.scale"}
_MAKE_INPUTS = {"table": "per_layer_token_embd.weight", "projection": "per_layer_model_proj.weight",
                "norm": "per_layer_proj_norm.weight"}
_READ_INPUT = {"gate": "inp_gate.weight", "output": "proj.weight", "norm": "post_norm.weight"}


def describe(backend: Backend, hyper: Hyper, tensors: Tensors) -> None:
    """Record the trunk."""
    embedding, output = tensors["token_embd.weight"], tensors.head()
    if output.shape != embedding.shape:
        raise BadModel(f"{output.name}: its shape is {output.shape}, that of {embedding.name} is {embedding.shape}")
    eps, attention = epsilon(hyper), attention_specs(hyper, tensors)
    moe = moe_spec(hyper, normalise=True, activation="geglu") if hyper.integer("expert_count", 0, low=0) else None
    first_reader = hyper.layers - hyper.integer("attention.shared_kv_layers", 0, low=0, high=hyper.layers)
    caches: dict[bool, Any] = {}  # the last one that a sliding or a full layer filled

    x = backend.embed(embedding, scale=embedding.shape[1]**0.5)
    spec = LayerInputs(hyper.layers, hyper.integer("embedding_length_per_layer_input", 0, low=0), embedding.shape[0], eps)
    inputs = None
    if spec.width:
        inputs = backend.layer_inputs(x, spec, {role: tensors[name] for role, name in _MAKE_INPUTS.items()})
    for layer, form in enumerate(attention):
        kind, fills = form.window > 0, layer < first_reader
        weights = _attention_weights(tensors, layer, form, fills=fills)
        if fills:
            caches[kind] = backend.key_value_cache(form, f"blk.{layer}")
        if kind not in caches:
            raise BadModel(f"blk.{layer}: it shares the cache of a layer of its kind, and there is none before it")
        norms = tensors.block(layer, _NORMS)
        y = backend.attention(backend.norm(x, norms["attention"], eps=eps), form, weights, cache=caches[kind])
        x = backend.add(x, backend.norm(y, norms["behind_attention"], eps=eps))
        y = _feed_forward(backend, x, layer, tensors, moe, norm=norms["ffn"], eps=eps)
        x = backend.add(x, backend.norm(y, norms["behind_ffn"], eps=eps))
        if inputs is not None:
            x = backend.add(x, backend.read_layer_input(x, inputs, spec, tensors.block(layer, _READ_INPUT), layer=layer))
        factor = tensors.get(f"blk.{layer}.layer_output_scale.weight")
        if factor is not None:
            x = backend.scale(x, *float_values(factor, 1))
    x = backend.norm(x, tensors["output_norm.weight"], eps=eps)
    backend.head(x, output, soft_cap=hyper.number("final_logit_softcapping", _SOFT_CAP, low=0.0))


def attention_specs(hyper: Hyper, tensors: Tensors) -> list[Attention]:
    """One a layer. Scores are not scaled: the norms of queries and keys are."""
    layers = hyper.layers
    slides = hyper.booleans("attention.sliding_window_pattern", layers)
    heads, kv_heads = (_of_layers(hyper, f"attention.{key}", layers) for key in ("head_count", "head_count_kv"))
    window = hyper.integer("attention.sliding_window")
    dims = {True: _head_dim(hyper, "_swa"), False: _head_dim(hyper, "")}
    ropes = {True: Rope(hyper.integer("rope.dimension_count_swa", dims[True]), hyper.number("rope.freq_base_swa", 10000.0))}
    if not all(slides):
        dim = hyper.integer("rope.dimension_count", dims[False])
        ropes[False] = rope_spec(hyper, dim, adjacent=False, factors=tensors["rope_freqs.weight"])
    eps = epsilon(hyper)
    return [Attention(heads=heads[i], kv_heads=kv_heads[i], head_dim=dims[slide], value_dim=dims[slide], scale=1.0, eps=eps,
                      rope=ropes[slide], window=window if slide else 0, value_norm=True)
            for i, slide in enumerate(slides)]


def _attention_weights(tensors: Tensors, layer: int, form: Attention, *, fills: bool) -> dict[str, Tensor]:
    """Tensors of one layer by role. A file may hold keys of a layer that fills no cache too; nothing reads them."""
    found = fused_projections(tensors, layer, form)
    needed = {**_QUERIES, **(_KEYS if fills else {})}
    found |= tensors.block(layer, {role: name for role, name in needed.items() if role not in found}, {**_KEYS, **_VALUES})
    return found if fills else {role: found[role] for role in _QUERIES}


def _feed_forward(backend: Backend, x: Any, layer: int, tensors: Tensors, moe: Moe | None, *, norm: Tensor,
                  eps: float) -> Any:
    """A dense feed-forward and, on a layer that has experts, theirs beside it, both normed: f32 [T, D]."""
    y = backend.feed_forward(backend.norm(x, norm, eps=eps), tensors.block(layer, DENSE), activation="geglu")
    if moe is None or tensors.get(f"blk.{layer}.ffn_gate_inp.weight") is None:
        return y
    norms = tensors.block(layer, _EXPERT_NORMS)
    y = backend.norm(y, norms["behind_dense"], eps=eps, name="dense_normed")
    asked = backend.scale(backend.norm(x, norms["router"], eps=eps, name="router_input"), x.width**-0.5)
    experts = backend.moe(backend.norm(x, norms["experts"], eps=eps), moe, routed_experts(tensors, layer), router_input=asked)
    return backend.add(y, backend.norm(experts, norms["behind_experts"], eps=eps))


def _head_dim(hyper: Hyper, suffix: str) -> int:
    dim = hyper.integer(f"attention.key_length{suffix}", high=1 << 12)
    if hyper.integer(f"attention.value_length{suffix}", dim) != dim:
        raise BadModel(f"{hyper.arch}.attention.value_length{suffix}: expected {dim}, the width of keys")
    return dim


def _of_layers(hyper: Hyper, key: str, layers: int) -> list[int]:
    values = hyper.per_layer(key, layers)
    if len(values) < layers:
        raise BadModel(f"{hyper.arch}.{key}: {len(values)} values for {layers} layers")
    return values

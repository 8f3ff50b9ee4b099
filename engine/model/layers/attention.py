"""Softmax attention from the common metadata keys: heads, rotation with its scaling, sliding layers, and tensor names."""

from dataclasses import replace
from math import log

from engine.backend.base import Attention, Rope, Yarn
from engine.errors import BadModel
from engine.gguf import Tensor
from engine.model.base import Hyper, Tensors, float_values, rows_of

_PROJECTIONS = {"q": "attn_q.weight", "k": "attn_k.weight", "v": "attn_v.weight", "output": "attn_output.weight"}
_OPTIONAL = {"q_bias": "attn_q.bias", "k_bias": "attn_k.bias", "v_bias": "attn_v.bias", "output_bias": "attn_output.bias",
             "sinks": "attn_sinks.weight"}
_HEAD_NORMS = {"q_norm": "attn_q_norm.weight", "k_norm": "attn_k_norm.weight"}


def attention_spec(hyper: Hyper, tensors: Tensors, *, adjacent: bool, layer: int | None = None) -> Attention:
    """Grouped-query attention over all cells; rotary pairs (2i, 2i + 1) if `adjacent`; heads of one layer where they differ."""
    if layer is None:
        heads = hyper.integer("attention.head_count")
        kv_heads = hyper.integer("attention.head_count_kv", heads)
    else:
        heads, kv_heads = (hyper.of_layers(f"attention.{key}")[layer] for key in ("head_count", "head_count_kv"))
        if min(heads, kv_heads) < 1:
            raise BadModel(f"{hyper.arch}.attention.head_count: {heads} on {kv_heads} of keys in layer {layer}")
    head_dim = hyper.integer("attention.key_length", hyper.integer("embedding_length") // heads, high=1 << 12)
    return Attention(
        heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        value_dim=hyper.integer("attention.value_length", head_dim, high=1 << 12), scale=head_dim**-0.5,
        eps=hyper.number("attention.layer_norm_rms_epsilon", low=0.0),
        rope=rope_spec(hyper, hyper.integer("rope.dimension_count", head_dim, high=head_dim), adjacent=adjacent,
                       factors=tensors.get("rope_freqs.weight")))


def rope_spec(hyper: Hyper, dims: int, *, adjacent: bool, factors: Tensor | None = None) -> Rope:
    """Rotation of `dims` dimensions, scaled as the file says."""
    if dims % 2:
        raise BadModel(f"{hyper.arch}.rope.dimension_count: {dims} dimensions cannot be rotated in pairs")
    kind = hyper.text("rope.scaling.type", "linear")
    factor = hyper.number("rope.scaling.factor", 0.0) or hyper.number("rope.scale_linear", 0.0) or 1.0
    if kind not in ("none", "linear", "yarn") or factor <= 0:
        raise BadModel(f"{hyper.arch}.rope.scaling: the kind {kind!r} with a factor of {factor} is not supported")
    stretch = 1.0 if kind == "none" else factor
    yarn = None
    if kind == "yarn":
        yarn = Yarn(hyper.integer("rope.scaling.original_context_length", hyper.integer("context_length")),
                    (1 + 0.1 * log(max(factor, 1.0))) * hyper.number("rope.scaling.attn_factor", 1.0))
    return Rope(dims, hyper.number("rope.freq_base", 10000.0), adjacent,
                float_values(factors, dims // 2) if factors is not None else (), 1 / stretch, yarn)


def sliding_layers(hyper: Hyper, period: int) -> list[bool]:
    """Which layers slide: all but the last of each `period`, unless the file gives a period of its own or a list."""
    key = "attention.sliding_window_pattern"
    if hyper.is_array(key):
        return hyper.booleans(key, hyper.layers)
    period = hyper.integer(key, period, low=0)
    return [period == 0 or layer % period < period - 1 for layer in range(hyper.layers)]


def sliding(spec: Attention, hyper: Hyper, rope: Rope) -> Attention:
    """The same attention on a layer that sees the last few cells, with a rotation of its own."""
    return replace(spec, window=hyper.integer("attention.sliding_window"), rope=rope)


def attention_weights(tensors: Tensors, layer: int, spec: Attention, *, head_norms: bool) -> dict[str, Tensor]:
    """Tensors of one layer by role."""
    fused = fused_projections(tensors, layer, spec)
    needed = {**_PROJECTIONS, **(_HEAD_NORMS if head_norms else {})}
    return fused | tensors.block(layer, {role: name for role, name in needed.items() if role not in fused}, _OPTIONAL)


def fused_projections(tensors: Tensors, layer: int, spec: Attention) -> dict[str, Tensor]:
    """Projections to queries, keys and values, and their biases, of a layer that keeps them in one tensor; else nothing."""
    queries, kv_heads = spec.heads * spec.head_dim * (2 if spec.gated else 1), spec.kv_heads
    counts = {"q": queries, "k": kv_heads * spec.head_dim, "v": kv_heads * spec.value_dim}
    found = {}
    for kind, suffix in (("weight", ""), ("bias", "_bias")):
        whole, start = tensors.get(f"blk.{layer}.attn_qkv.{kind}"), 0
        if whole is not None and whole.shape[0] != sum(counts.values()):
            raise BadModel(f"{whole.name}: its shape is {whole.shape}, expected {sum(counts.values())} rows")
        for role, count in counts.items() if whole is not None else ():
            found[role + suffix] = rows_of(whole, start, start + count)
            start += count
    return found

"""What shapes a block's weights have: the specification and the input's width say it, for every backend alike.

Kernels take addresses and have no bounds of their own, so a backend checks a block here before it records anything. A
weight of another shape is a BadModel that names the tensor and what was expected. Pure; knows nothing of processors.
"""

from collections.abc import Mapping

from engine.backend.base import (
    Activation,
    Attention,
    DeltaNet,
    HyperConnection,
    LayerInputs,
    Mamba2,
    Mla,
    Moe,
    NgramTable,
    Rope,
    ShortConv,
    Weights,
)
from engine.errors import BadModel, Internal

Shape = tuple[int, ...]  # numpy order, rows first


def check_attention(spec: Attention, weights: Weights, *, width: int) -> None:
    """Projections, norms and biases of an attention block whose input is f32 [T, width]."""
    heads, kv_heads, dim = spec.heads, spec.kv_heads, spec.head_dim
    name = next(iter(weights.values())).name
    if min(heads, kv_heads, dim, spec.value_dim) < 1 or heads % kv_heads:
        raise BadModel(f"{name}: {heads} query heads of {dim} values on {kv_heads} key heads do not go together")
    if spec.gated and spec.value_dim != dim:
        raise BadModel(f"{name}: values of {spec.value_dim} with a gate of {dim}")
    if spec.rope is not None:
        _check_rope(spec.rope, dim, name)
    q, k, v = heads * dim, kv_heads * dim, kv_heads * spec.value_dim
    query_rows = 2 * q if spec.gated else q
    expected: dict[str, Shape] = {
        "q": (query_rows, width), "k": (k, width), "v": (v, width), "output": (width, heads * spec.value_dim),
        "q_bias": (query_rows,), "k_bias": (k,), "v_bias": (v,), "output_bias": (width,),
        "q_norm": (q if spec.whole_norms else dim,), "k_norm": (k if spec.whole_norms else dim,), "sinks": (heads,)}
    if spec.indexer is not None:
        index = spec.indexer
        expected |= {
            "indexer_q": (index.heads * index.dim, width), "indexer_k": (index.dim, width),
            "indexer_q_norm": (index.dim,), "indexer_k_norm": (index.dim,)}
    _check(weights, expected)


def check_mla(spec: Mla, weights: Weights, *, width: int) -> None:
    """Attention over compressed cells whose input is f32 [T, width]."""
    heads, latent, turned = spec.heads, spec.latent, spec.rope.dims
    name = weights["kv_a"].name
    if min(heads, latent, spec.content_dim, spec.value_dim) < 1:
        raise BadModel(f"{name}: {heads} heads of {spec.content_dim} and {turned} values over {latent} do not go together")
    _check_rope(spec.rope, turned, name)
    query, rank = heads * (spec.content_dim + turned), spec.query_rank
    _check(weights, {
        "q": (query, width), "q_a": (rank, width), "q_a_norm": (rank,), "q_b": (query, rank),
        "kv_a": (latent + turned, width), "kv_a_norm": (latent,), "k_b": (heads, latent, spec.content_dim),
        "v_b": (heads, spec.value_dim, latent), "kv_b": (heads * (spec.content_dim + spec.value_dim), latent),
        "output": (width, heads * spec.value_dim)})


def check_delta_net(spec: DeltaNet, weights: Weights, *, width: int) -> None:
    """A delta net whose input is f32 [T, width]; rows of qkv are queries, keys, values."""
    heads, inner = spec.value_heads, spec.value_heads * spec.head_dim
    channels = 2 * spec.key_heads * spec.head_dim + inner
    _check(weights, {
        "qkv": (channels, width), "z": (inner, width), "alpha": (heads, width), "beta": (heads, width), "a": (heads,),
        "dt": (heads,), "conv": (channels, spec.conv_taps), "norm": (spec.head_dim,), "output": (width, inner)})


def check_mamba2(spec: Mamba2, weights: Weights, *, width: int) -> None:
    """A Mamba2 block whose input is f32 [T, width]."""
    heads, inner = spec.heads, spec.heads * spec.head_dim
    _check(weights, {
        "input": (inner + spec.channels + heads, width), "conv": (spec.channels, spec.conv_taps), "conv_bias": (spec.channels,),
        "dt": (heads,), "a": (heads, 1), "d": (heads, 1), "norm": (spec.groups, inner // spec.groups),
        "output": (width, inner)})


def check_short_conv(spec: ShortConv, weights: Weights, *, width: int) -> None:
    """A short convolution whose input is f32 [T, width]."""
    _check(weights, {"input": (3 * width, width), "conv": (width, spec.taps), "output": (width, width)})


def check_moe(spec: Moe, weights: Weights, *, width: int, router_width: int) -> None:
    """Router, routed experts and the shared one. The experts' inner width is that of their down projection."""
    n = spec.experts
    if not 1 <= spec.used <= n:
        raise BadModel(f"{weights['router'].name}: {spec.used} of {n} experts a token: expected 1 to {n}")
    if ("gate_exps_bias" in weights) != ("up_exps_bias" in weights):
        raise BadModel(f"{weights['down_exps'].name}: its layer has biases of only one of gate and up")
    _check_groups(spec, weights["router"].name)
    _check_gate(spec.activation, weights, ("gate_exps", "gate_up_exps"), "down_exps")
    inner, shared = weights["down_exps"].shape[-1], 0
    if "down_shared" in weights:
        shared = weights["down_shared"].shape[-1]
    _check(weights, {
        "router": (n, router_width), "router_bias": (n,), "selection_bias": (n,),
        "gate_up_exps": (n, 2 * inner, width), "gate_exps": (n, inner, width), "up_exps": (n, inner, width),
        "down_exps": (n, width, inner), "gate_exps_bias": (n, inner), "up_exps_bias": (n, inner),
        "down_exps_bias": (n, width), "down_exps_scale": (n,),
        "gate_shared": (shared, width), "up_shared": (shared, width), "down_shared": (width, shared),
        "router_shared": (1, width) if len(_shape(weights, "router_shared")) == 2 else (width,)})


def check_feed_forward(weights: Weights, *, width: int, activation: Activation = "swiglu") -> None:
    """gate and up of any number of rows, and the down projection that goes back to `width`."""
    inner = weights["down"].shape[-1]
    _check_gate(activation, weights, ("gate",), "down")
    _check(weights, {"gate": (inner, width), "up": (inner, width), "down": (width, inner)})


def check_hyper_connection(spec: HyperConnection, weights: Weights, *, width: int) -> None:
    """A read of streams f32 [T, width], `width` counting all streams."""
    rank = weights["down"].shape[0]
    _check(weights, {"norm": (width,), "down": (rank, width), "up": (width, rank), "inject": (spec.streams, width)})


def check_ngram(spec: NgramTable, weights: Weights, *, width: int) -> None:
    """The table and what turns its rows into f32 [T, width], `width` counting all streams."""
    rows, gathered = weights["table"].shape[0], len(spec.head_sizes) * spec.row_width
    _check(weights, {
        "table": (rows, spec.row_width), "key": (width, gathered), "value": (width // spec.streams, gathered),
        "norm_key": (width,), "norm_query": (width,), "norm_conv": (width,), "conv": (width, spec.conv_taps)})


def check_layer_inputs(spec: LayerInputs, weights: Weights, *, width: int) -> None:
    """What makes the inputs of all layers out of f32 [T, width]."""
    every = spec.layers * spec.width
    _check(weights, {"table": (spec.tokens, every), "projection": (every, width), "norm": (spec.width,)})


def check_layer_input_reader(spec: LayerInputs, weights: Weights, *, width: int) -> None:
    """What reads a layer's input with the stream f32 [T, width] at hand."""
    _check(weights, {"gate": (spec.width, width), "output": (width, spec.width), "norm": (width,)})


def _check_gate(activation: Activation, weights: Weights, gates: tuple[str, ...], down: str) -> None:
    """There is a gate unless the activation has none."""
    if any(role in weights for role in gates) != (activation != "squared_relu"):
        raise BadModel(f"{weights[down].name}: gates of its layer do not go with the activation {activation}")


def _check_groups(spec: Moe, name: str) -> None:
    """Groups of experts: equal ones, of at least two, and enough of them stay."""
    if spec.groups == 1:
        return
    size, rest = divmod(spec.experts, spec.groups)
    if rest or size < 2 or not 1 <= spec.groups_used <= spec.groups or spec.groups_used * size < spec.used:
        raise BadModel(f"{name}: {spec.experts} experts in {spec.groups} groups, {spec.groups_used} of them used,"
                       f" do not give {spec.used}")


def _check_rope(rope: Rope, dim: int, name: str) -> None:
    if rope.dims % 2 or not 2 <= rope.dims <= dim:
        raise BadModel(f"{name}: {rope.dims} of {dim} dimensions of a head rotated: expected an even number, at most all")
    if not rope.base > (0 if rope.yarn is None else 1):
        raise BadModel(f"{name}: a rotation of base {rope.base} is not supported")
    if rope.frequency_factors and len(rope.frequency_factors) != rope.dims // 2:
        raise BadModel(f"{name}: {len(rope.frequency_factors)} frequency factors for {rope.dims // 2} rotated pairs")
    if not all(0 < abs(factor) < float("inf") for factor in rope.frequency_factors):
        raise BadModel(f"{name}: a frequency factor is zero or not finite")


def _shape(weights: Weights, role: str) -> Shape:
    return weights[role].shape if role in weights else ()


def _check(weights: Weights, expected: Mapping[str, Shape]) -> None:
    for role, tensor in weights.items():
        if role not in expected:
            raise Internal(f"{tensor.name}: a block has no weight in the role {role}")
        if tensor.shape != expected[role]:
            raise BadModel(f"{tensor.name}: its shape is {tensor.shape}, expected {expected[role]}")

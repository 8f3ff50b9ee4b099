"""Attention block: projections, norms and rotation into the cache, selection of cells if there is one, attention, output."""

from engine.backend import base
from engine.backend.cpu import attention as kernels
from engine.backend.cpu import shared_attention
from engine.backend.cpu.blocks import indexer
from engine.backend.cpu.blocks.heads import place_heads
from engine.backend.cpu.program import float_bits
from engine.errors import BadModel

_NO_WINDOW = 1 << 62


class KeyValueCache:
    """Keys f32 [kv heads, context, head dim] and values alike, by position."""

    def __init__(self, b, spec: base.Attention, name: str) -> None:
        self.keys = b.state_array(f"{name}.keys", (spec.kv_heads, b.max_context, spec.head_dim), positional=True)
        self.values = b.state_array(f"{name}.values", (spec.kv_heads, b.max_context, spec.value_dim), positional=True)


def attention(b, x, spec: base.Attention, w: base.Weights, cache: KeyValueCache | None):
    """x f32 [T, D] -> f32 [T, D]. A layer without keys of its own reads the cache that it is given."""
    query_width, writes = spec.head_dim * (2 if spec.gated else 1), "k" in w
    q = b.rows("query", spec.heads * query_width)
    b.linear(x, w["q"], q, bias=w.get("q_bias"), barrier=not writes)
    if writes:
        cache = cache or KeyValueCache(b, spec, w["k"].name)
        k = v = b.linear(x, w["k"], b.rows("key", spec.kv_heads * spec.head_dim), bias=w.get("k_bias"), barrier="v" not in w)
        if "v" in w:
            v = b.linear(x, w["v"], b.rows("value", spec.kv_heads * spec.value_dim), bias=w.get("v_bias"))
        _fill(b, k, v, spec, w, cache)
    if cache is None or cache.keys.shape[::2] != (spec.kv_heads, spec.head_dim):
        raise BadModel(f"{w['q'].name}: there are no keys of its shape to attend to")
    _place(b, q, spec.heads, spec, w.get("q_norm"), stride=query_width)

    cells = indexer.select_cells(b, x, spec, w) if spec.indexer else None
    mixed = b.rows("mixed", spec.heads * spec.value_dim)
    kernel, scratch_bytes = kernels.attention_function(True), 4 * (b.max_context + 16)
    if cells is None:
        kernel, scratch_bytes = shared_attention.dense_attention(spec.heads // spec.kv_heads, b.max_context)
    scratch, piece = b.program.worker_scratch("scores", scratch_bytes)
    sinks = w.get("sinks")
    b.program.add(kernel, {
        kernels.QUERY: q.address, kernels.QUERY_TOKEN: 4 * q.width, kernels.QUERY_HEAD: 4 * query_width,
        kernels.HEADS: spec.heads, kernels.QUERY_PER_KEY: spec.heads // spec.kv_heads,
        kernels.HEAD_DIM: spec.head_dim, kernels.VALUE_DIM: spec.value_dim,
        kernels.KEYS: cache.keys.ctypes.data, kernels.VALUES: cache.values.ctypes.data,
        kernels.KEY_HEAD: cache.keys[0].nbytes, kernels.VALUE_HEAD: cache.values[0].nbytes,
        kernels.VALUE_CELL: 4 * spec.value_dim,
        kernels.SCALE: float_bits(spec.scale), kernels.GATE: 4 * spec.head_dim if spec.gated else 0,
        kernels.OUT: mixed.address,
        kernels.CELLS: cells.ctypes.data if cells is not None else 0,
        kernels.CELLS_TOKEN: cells[0].nbytes if cells is not None else 0,
        kernels.SCRATCH: scratch, kernels.SCRATCH_BYTES: piece,
        kernels.WINDOW: spec.window or _NO_WINDOW, kernels.SINKS: b.vector(sinks) if sinks is not None else 0})
    b.written(mixed)
    return b.linear(mixed, w["output"], b.rows("block_out", w["output"].shape[0]), bias=w.get("output_bias"))


def _fill(b, k, v, spec: base.Attention, w: base.Weights, cache: KeyValueCache) -> None:
    """Keys and values of the window into the cache. Values may be the same rows as keys, before norm and rotation."""
    if v.width != spec.kv_heads * spec.value_dim or (v is k and spec.whole_norms):
        raise BadModel(f"{w['k'].name}: keys cannot stand for values of {spec.value_dim}")
    place_heads(b, v, spec.kv_heads, spec.value_dim, eps=spec.eps, bare_norm=spec.value_norm, cache=cache.values,
                barrier=False)
    _place(b, k, spec.kv_heads, spec, w.get("k_norm"), cache=cache.keys, barrier=False)


def _place(b, x, heads: int, spec: base.Attention, norm, *, stride: int | None = None, cache=None,
           barrier: bool = True) -> None:
    """Norm and rotate the heads of queries or keys."""
    if spec.whole_norms and norm is not None:
        b.norm(x, norm, eps=spec.eps, name=x.name)
        norm = None
    place_heads(b, x, heads, spec.head_dim, stride=stride, norm=norm, eps=spec.eps, rope=spec.rope, cache=cache,
                barrier=barrier)

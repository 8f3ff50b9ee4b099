"""Attention block: projections, norms and rotation into the cache, selection of cells if there is one, attention, output."""

from engine.backend import base
from engine.backend.cpu import attention as kernels
from engine.backend.cpu.blocks import indexer
from engine.backend.cpu.blocks.heads import place_heads
from engine.backend.cpu.program import float_bits


def attention(b, x, spec: base.Attention, w: base.Weights):
    """x f32 [T, D] -> f32 [T, D]. Cache: keys f32 [kv heads, context, head dim], values alike."""
    query_width = spec.head_dim * (2 if spec.gated else 1)
    q = b.rows("query", spec.heads * query_width)
    k, v = b.rows("key", spec.kv_heads * spec.head_dim), b.rows("value", spec.kv_heads * spec.value_dim)
    b.linear(x, w["q"], q, bias=w.get("q_bias"), barrier=False)
    b.linear(x, w["k"], k, bias=w.get("k_bias"), barrier=False)
    b.linear(x, w["v"], v, bias=w.get("v_bias"))

    layer = w["k"].name
    keys = b.state_array(f"{layer}.keys", (spec.kv_heads, b.max_context, spec.head_dim), positional=True)
    values = b.state_array(f"{layer}.values", (spec.kv_heads, b.max_context, spec.value_dim), positional=True)
    place_heads(b, q, spec.heads, spec.head_dim, stride=query_width, norm=w.get("q_norm"), eps=spec.eps, rope=spec.rope,
                barrier=False)
    place_heads(b, k, spec.kv_heads, spec.head_dim, norm=w.get("k_norm"), eps=spec.eps, rope=spec.rope, cache=keys,
                barrier=False)
    place_heads(b, v, spec.kv_heads, spec.value_dim, cache=values)

    cells = indexer.select_cells(b, x, spec, w) if spec.indexer else None
    mixed = b.rows("mixed", spec.heads * spec.value_dim)
    scratch, piece = b.program.worker_scratch("scores", 4 * (b.max_context + 16))
    b.program.add(kernels.attention_function(cells is not None), {
        kernels.QUERY: q.address, kernels.QUERY_TOKEN: 4 * q.width, kernels.QUERY_HEAD: 4 * query_width,
        kernels.HEADS: spec.heads, kernels.QUERY_PER_KEY: spec.heads // spec.kv_heads,
        kernels.HEAD_DIM: spec.head_dim, kernels.VALUE_DIM: spec.value_dim,
        kernels.KEYS: keys.ctypes.data, kernels.VALUES: values.ctypes.data,
        kernels.KEY_HEAD: keys[0].nbytes, kernels.VALUE_HEAD: values[0].nbytes,
        kernels.SCALE: float_bits(spec.scale), kernels.GATE: 4 * spec.head_dim if spec.gated else 0,
        kernels.OUT: mixed.address,
        kernels.CELLS: cells.ctypes.data if cells is not None else 0,
        kernels.CELLS_TOKEN: cells[0].nbytes if cells is not None else 0,
        kernels.SCRATCH: scratch, kernels.SCRATCH_BYTES: piece})
    b.written(mixed)
    return b.linear(mixed, w["output"], b.rows("block_out", w["output"].shape[0]), bias=w.get("output_bias"))

"""Index of sparse attention: which cells each token attends to. Owns the layer's raw and block keys."""

import numpy as np

from engine.backend import base
from engine.backend.cpu import sparse
from engine.backend.cpu.blocks.heads import place_heads
from engine.backend.cpu.program import float_bits
from engine.errors import BadModel


def select_cells(b, x, spec: base.Attention, w: base.Weights) -> np.ndarray:
    """Cells of every token, i32 [max rows, 1 + capacity], their number first. State: keys f32 [context, dim] and
    [context / block, dim]."""
    index = spec.indexer
    keep = index.budget // index.block
    if keep < 1 or index.dim % 16 or (spec.rope and spec.rope.dims > index.dim):
        raise BadModel(f"{w['indexer_k'].name}: an index of {index} does not go with {spec.rope}")
    query = b.rows("index_query", index.heads * index.dim)
    key = b.rows("index_key", index.dim)
    b.linear(x, w["indexer_q"], query, barrier=False)
    b.linear(x, w["indexer_k"], key)
    blocks = -(-b.max_context // index.block)
    layer = w["indexer_k"].name
    raw = b.state_array(f"{layer}.raw", (1, b.max_context, index.dim), positional=True)
    pooled = b.state_array(f"{layer}.pooled", (blocks, index.dim), positional=True, cells_per_row=index.block)
    place_heads(b, query, index.heads, index.dim, norm=w["indexer_q_norm"], eps=spec.eps, rope=spec.rope, barrier=False)
    place_heads(b, key, 1, index.dim, cache=raw)
    b.program.add(sparse.pool_blocks, {
        sparse.POOL_RAW: raw.ctypes.data, sparse.POOL_OUT: pooled.ctypes.data, sparse.POOL_BLOCK: index.block,
        sparse.POOL_DIM: index.dim, sparse.POOL_NORM: b.vector(w["indexer_k_norm"]), sparse.POOL_EPS: float_bits(spec.eps),
        sparse.POOL_ROPE: b.rope_table(spec.rope) if spec.rope else 0, sparse.POOL_ROTARY: spec.rope.dims if spec.rope else 0,
        sparse.POOL_ADJACENT: int(spec.rope.adjacent) if spec.rope else 0})

    scores = b.program.scratch("block_scores", (b.max_rows, blocks))
    b.program.add(sparse.score_blocks, {
        sparse.SCORE_QUERY: query.address, sparse.SCORE_HEADS: index.heads, sparse.SCORE_DIM: index.dim,
        sparse.SCORE_KEYS: pooled.ctypes.data, sparse.SCORE_BLOCK: index.block, sparse.SCORE_KEEP: keep,
        sparse.SCORE_OUT: scores.ctypes.data, sparse.SCORE_OUT_TOKEN: scores[0].nbytes})
    capacity = min(b.max_context, (keep + 1) * index.block - 1)
    cells = b.program.scratch("cells", (b.max_rows, 1 + capacity), np.int32)
    b.program.add(sparse.select_cells, {
        sparse.SELECT_SCORES: scores.ctypes.data, sparse.SELECT_SCORES_TOKEN: scores[0].nbytes,
        sparse.SELECT_BLOCK: index.block, sparse.SELECT_KEEP: keep,
        sparse.SELECT_OUT: cells.ctypes.data, sparse.SELECT_OUT_TOKEN: cells[0].nbytes,
        sparse.SELECT_SCRATCH: b.program.worker_scratch("histogram", sparse.HISTOGRAM_BYTES)[0]})
    return cells

"""Attention over compressed cells: a cell is one latent vector and the rotated key part that all heads share.

Keys are never formed: a head's query is taken through its key projection and meets the latent vector itself; the values'
projection follows the sum over cells. A tensor that holds both projections is split when the model is loaded.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from engine.backend import base
from engine.backend.cpu import attention as kernels
from engine.backend.cpu import routing, shared_attention, transpose
from engine.backend.cpu.blocks.heads import HeadsAt, move_heads
from engine.backend.cpu.program import float_bits
from engine.gguf import FORMATS, Tensor

_NO_WINDOW = 1 << 62
_FORMAT_OF_KEYS = {"F32": "F32", "BF16": "F32"}  # of keys split off; F16 holds the values of all other formats well enough


def mla(b, x, spec: base.Mla, w: base.Weights):
    """x f32 [T, D] -> f32 [T, D]. State: cells f32 [1, context, latent + rope dims]."""
    heads, latent, turned = spec.heads, spec.latent, spec.rope.dims
    cell_bytes, head_bytes = 4 * (latent + turned), 4 * (spec.content_dim + turned)
    every_head = _every_head(b, heads)
    cells = b.state_array(f"{w['kv_a'].name}.cells", (1, b.max_context, latent + turned), positional=True)
    compressed = b.linear(x, w["kv_a"], b.rows("mla_compressed", latent + turned), barrier=False)
    q = _queries(b, x, spec, w)

    source, target = HeadsAt(compressed.address, cell_bytes, 0), HeadsAt(cells.ctypes.data, cell_bytes, 0, by_position=True)
    move_heads(b, source, target, 1, latent, norm=w["kv_a_norm"], eps=spec.eps, barrier=False)
    move_heads(b, source.skip(latent), target.skip(latent), 1, turned, rope=spec.rope, barrier=False)

    content, query = (b.rows(f"mla_{part}", width, per_token=heads)
                      for part, width in (("content", spec.content_dim), ("query", latent + turned)))
    source, target = HeadsAt(q.address, heads * head_bytes, head_bytes), HeadsAt(query.address, heads * cell_bytes, cell_bytes)
    move_heads(b, source.skip(spec.content_dim), target.skip(latent), heads, turned, rope=spec.rope, barrier=False)
    move_heads(b, source, HeadsAt(content.address, 4 * content.width * heads, 4 * content.width), heads, content.width)
    b.linear(b.written(content), _key_projection(b, spec, w), query, groups=every_head, row_range=(0, latent))

    mixed = b.rows("mla_mixed", latent, per_token=heads)
    kernel, scratch_bytes = shared_attention.dense_attention(heads, b.max_context)
    scratch, piece = b.program.worker_scratch("scores", scratch_bytes)
    b.program.add(kernel, {
        kernels.QUERY: query.address, kernels.QUERY_TOKEN: heads * cell_bytes, kernels.QUERY_HEAD: cell_bytes,
        kernels.HEADS: heads, kernels.QUERY_PER_KEY: heads, kernels.HEAD_DIM: latent + turned, kernels.VALUE_DIM: latent,
        kernels.KEYS: cells.ctypes.data, kernels.VALUES: cells.ctypes.data, kernels.KEY_HEAD: 0, kernels.VALUE_HEAD: 0,
        kernels.VALUE_CELL: cell_bytes, kernels.SCALE: float_bits(spec.scale), kernels.GATE: 0, kernels.OUT: mixed.address,
        kernels.CELLS: 0, kernels.CELLS_TOKEN: 0, kernels.SCRATCH: scratch, kernels.SCRATCH_BYTES: piece,
        kernels.WINDOW: _NO_WINDOW, kernels.SINKS: 0})
    values, rows = _value_projection(spec, w)
    b.linear(b.written(mixed), values, b.rows("mla_values", spec.value_dim, per_token=heads), groups=every_head, row_range=rows)
    side_by_side = b.rows("mla_values", heads * spec.value_dim)  # the same memory: the heads of a token follow each other
    return b.linear(side_by_side, w["output"], b.rows("block_out", w["output"].shape[0]))


def _queries(b, x, spec: base.Mla, w: base.Weights):
    """f32 [T, heads * (content + rope dims)], straight or through a narrow layer."""
    out = b.rows("query", spec.heads * (spec.content_dim + spec.rope.dims))
    if "q" in w:
        return b.linear(x, w["q"], out)
    low = b.linear(x, w["q_a"], b.rows("mla_query_low", w["q_a"].shape[0]))
    return b.linear(b.norm(low, w["q_a_norm"], eps=spec.eps, name="mla_query_normed"), w["q_b"], out)


def _every_head(b, heads: int) -> tuple[int, int]:
    """Addresses of a plan and its pairs (see routing.py) by which each head's rows meet that head's matrix."""
    ids = b.program.scratch("mla_ids", (b.max_rows, heads), np.int32)
    b.later(partial(np.copyto, ids, np.arange(heads, dtype=np.int32)))
    plan = b.program.scratch("mla_plan", (1 + 3 * heads,), np.int64)
    pairs = b.program.scratch("mla_pairs", (b.max_rows * heads,), np.int32)
    counts, usage = (b.program.scratch(f"mla_{name}", (heads,), np.int64) for name in ("counts", "usage"))
    b.program.add(routing.plan_experts, {
        routing.PLAN_IDS: ids.ctypes.data, routing.PLAN_EXPERTS: heads, routing.PLAN_USED: heads,
        routing.PLAN_GROUPS: plan.ctypes.data, routing.PLAN_PAIRS: pairs.ctypes.data,
        routing.PLAN_USAGE: usage.ctypes.data, routing.PLAN_COUNTS: counts.ctypes.data}, barrier=False)
    return plan.ctypes.data, pairs.ctypes.data


def _by_head(spec: base.Mla, both: Tensor) -> Tensor:
    """Key and value rows of every head, [heads, content + value, latent]."""
    shape = (spec.heads, spec.content_dim + spec.value_dim, spec.latent)
    return replace(both, shape=shape, data=both.data.reshape(*shape[:2], -1))


def _value_projection(spec: base.Mla, w: base.Weights) -> tuple[Tensor, tuple[int, int]]:
    """The values' matrices, and which of their rows to use: inside the tensor that holds both they stay where they lie."""
    if "v_b" in w:
        return w["v_b"], (0, spec.value_dim)
    return _by_head(spec, w["kv_b"]), (spec.content_dim, spec.content_dim + spec.value_dim)


def _key_projection(b, spec: base.Mla, w: base.Weights) -> Tensor:
    """[heads, latent, content]; out of the tensor that holds both it is copied the other way round."""
    if "k_b" in w:
        return w["k_b"]
    both = _by_head(spec, w["kv_b"])
    form = FORMATS[_FORMAT_OF_KEYS.get(both.format.name, "F16")]
    keys = b.program.memory((spec.heads, spec.latent, spec.content_dim), np.float32 if form.name == "F32" else np.float16)
    b.later(partial(transpose.transpose_heads, b.pool, both, keys))
    return Tensor(f"{both.name} (keys)", keys.shape, form, keys.nbytes, both.shard, both.offset, keys.view(np.uint8))

"""Attention of heads that share keys, many tokens at a time, beside the same tokens one by one and beside float64."""

import numpy as np
import pytest

from engine.backend.cpu import isa

isa.prepare_numba()
from engine.backend.cpu import attention as one_head  # noqa: E402
from engine.backend.cpu import shared_attention  # noqa: E402
from engine.backend.cpu.backend import CpuBackend  # noqa: E402
from engine.backend.cpu.program import float_bits  # noqa: E402

CONTEXT, TOKENS, SCALE = 200, 19, 0.3


class Attention:
    """A program of one attention over given queries, keys and values."""

    def __init__(self, *, heads, kv_heads, dim, value_dim, window, sinks, gated, shared_cells):
        rng = np.random.default_rng(heads + dim)
        self.backend = CpuBackend(workers=2, max_context=CONTEXT, max_rows=TOKENS)
        self.heads, self.group, self.value_dim, self.window = heads, heads // kv_heads, value_dim, window or CONTEXT
        keep = self.backend.program.keep
        width = dim + value_dim if gated else dim
        self.query = self.backend.rows("query", heads * width)
        self.queries = rng.standard_normal((CONTEXT, heads, width)).astype(np.float32)
        self.keys = rng.standard_normal((kv_heads, CONTEXT, dim)).astype(np.float32)
        self.values = self.keys[..., :value_dim] if shared_cells else (
            rng.standard_normal((kv_heads, CONTEXT, value_dim)).astype(np.float32))
        self.sinks = rng.standard_normal(heads).astype(np.float32) if sinks else None
        self.out = self.backend.rows("out", heads * value_dim)
        kernel, scratch_bytes = shared_attention.dense_attention(self.group, CONTEXT)
        assert kernel is shared_attention.attention_of_groups
        scratch, piece = self.backend.program.worker_scratch("scores", scratch_bytes)
        k, held = one_head, self.keys if shared_cells else self.values
        self.backend.program.add(kernel, {
            k.QUERY: self.query.address, k.QUERY_TOKEN: 4 * heads * width, k.QUERY_HEAD: 4 * width, k.HEADS: heads,
            k.QUERY_PER_KEY: self.group, k.HEAD_DIM: dim, k.VALUE_DIM: value_dim, k.KEYS: keep(self.keys),
            k.VALUES: keep(held), k.KEY_HEAD: self.keys[0].nbytes, k.VALUE_HEAD: held[0].nbytes,
            k.VALUE_CELL: held[0, 0].nbytes, k.SCALE: float_bits(SCALE), k.GATE: 4 * dim if gated else 0,
            k.OUT: self.out.address, k.CELLS: 0, k.CELLS_TOKEN: 0, k.SCRATCH: scratch, k.SCRATCH_BYTES: piece,
            k.WINDOW: self.window, k.SINKS: keep(self.sinks) if sinks else 0})
        self.backend.program.seal()
        self.dim, self.gated = dim, gated

    def run(self, first: int, count: int) -> np.ndarray:
        """f32 [count, heads, value dim] of tokens at positions from `first` on."""
        self.query.array[:count] = self.queries[first:first + count].reshape(count, -1)
        self.out.array[:] = np.nan
        self.backend.program.run(rows=count, position=first, out_first=0, out_rows=0)
        return self.out.array[:count].reshape(count, self.heads, self.value_dim).copy()

    def expected(self, position: int) -> np.ndarray:
        """f64 [heads, value dim]."""
        start = max(0, position + 1 - self.window)
        rows = []
        for head in range(self.heads):
            cells = slice(start, position + 1)
            keys, values = (x[head // self.group, cells].astype(np.float64) for x in (self.keys, self.values))
            scores = keys @ self.queries[position, head, :self.dim].astype(np.float64) * SCALE
            weights = np.exp(scores)
            total = weights.sum() + (np.exp(float(self.sinks[head])) if self.sinks is not None else 0)
            row = weights @ values / total
            rows.append(row / (1 + np.exp(-self.queries[position, head, self.dim:].astype(np.float64))) if self.gated else row)
        return np.stack(rows)


@pytest.mark.parametrize("settings", [
    {"heads": 8, "kv_heads": 2, "dim": 64, "value_dim": 64}, {"heads": 8, "kv_heads": 1, "dim": 48, "value_dim": 80},
    {"heads": 4, "kv_heads": 1, "dim": 20, "value_dim": 12}, {"heads": 16, "kv_heads": 1, "dim": 96, "value_dim": 64,
                                                              "shared_cells": True},
    {"heads": 8, "kv_heads": 2, "dim": 32, "value_dim": 32, "window": 37, "sinks": True},
    {"heads": 8, "kv_heads": 2, "dim": 32, "value_dim": 48, "gated": True}], ids=lambda s: "-".join(map(str, s.values())))
def test_many_tokens_give_the_bits_of_one(settings):
    attention = Attention(**{"window": 0, "sinks": False, "gated": False, "shared_cells": False} | settings)
    try:
        for first in (0, 60, 120, CONTEXT - TOKENS):  # short of a tile, across one, across two, up to the end
            together = attention.run(first, TOKENS)
            alone = np.concatenate([attention.run(first + i, 1) for i in range(TOKENS)])
            assert np.array_equal(together.view(np.int32), alone.view(np.int32))
            for i in (0, TOKENS - 1):
                np.testing.assert_allclose(together[i], attention.expected(first + i), rtol=1e-4, atol=1e-5)
    finally:
        attention.backend.close()


def test_heads_that_are_no_multiple_of_four_go_one_by_one():
    kernel, scratch_bytes = shared_attention.dense_attention(3, 100)
    assert kernel is one_head.attention_function(False) and scratch_bytes == 4 * 116

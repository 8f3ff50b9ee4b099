"""Softmax attention for heads that read the same keys: a tile of cells is fetched once for all of them, and four heads
meet each cell at a time. For prompts, where fetching the cache would be the bound.

The sums are those of `attention`, in the same order, so the results are the same bits. Windows of a few tokens go to that
kernel, since single heads keep more workers busy. Takes its arguments, with scratch for the scores of a group's heads.
"""

from collections.abc import Callable

from numba import njit

from engine.backend.cpu import attention, simd, vecmath
from engine.backend.cpu.attention import (
    GATE,
    HEAD_DIM,
    HEADS,
    KEY_HEAD,
    KEYS,
    OUT,
    QUERY,
    QUERY_HEAD,
    QUERY_PER_KEY,
    QUERY_TOKEN,
    SCALE,
    SCRATCH,
    SCRATCH_BYTES,
    SINKS,
    VALUE_CELL,
    VALUE_DIM,
    VALUE_HEAD,
    VALUES,
    WINDOW,
)
from engine.backend.cpu.kernel import WINDOW_POSITION, WINDOW_ROWS, float_slot, slot, specialise, take

FEW_TOKENS = 8
TILE = 64  # cells that stay near while all heads of a group meet them

one_by_one = njit(specialise(attention.attention, "of_few", SPARSE=False), error_model="numpy")


def _row_bytes(context: int) -> int:
    """One head's scores, room for the loads of sixteen, and the sum of its weights as the last value."""
    return -(-4 * (context + 32) // 64) * 64


@njit(error_model="numpy")
def _lanes(query, step, key, n):
    """Partial sums, sixteen lanes each, of four queries with a key."""
    a = simd.splat_f32(simd.f32_of_bits(0))
    b, c, d = a, a, a
    for i in range(0, n, 16):
        k = simd.load_f32x16(key + 4 * i)
        a = simd.add_f32(a, simd.mul_f32(simd.load_f32x16(query + 4 * i), k))
        b = simd.add_f32(b, simd.mul_f32(simd.load_f32x16(query + step + 4 * i), k))
        c = simd.add_f32(c, simd.mul_f32(simd.load_f32x16(query + 2 * step + 4 * i), k))
        d = simd.add_f32(d, simd.mul_f32(simd.load_f32x16(query + 3 * step + 4 * i), k))
    return a, b, c, d


@njit(error_model="numpy")
def _two(query, step, key, key_step, n):
    a0, b0, c0, d0 = _lanes(query, step, key, n)
    a1, b1, c1, d1 = _lanes(query, step, key + key_step, n)
    return simd.fold_f32_8(a0, a1), simd.fold_f32_8(b0, b1), simd.fold_f32_8(c0, c1), simd.fold_f32_8(d0, d1)


@njit(error_model="numpy")
def _four(query, step, key, key_step, n):
    a0, b0, c0, d0 = _two(query, step, key, key_step, n)
    a1, b1, c1, d1 = _two(query, step, key + 2 * key_step, key_step, n)
    return simd.fold_f32_4(a0, a1), simd.fold_f32_4(b0, b1), simd.fold_f32_4(c0, c1), simd.fold_f32_4(d0, d1)


@njit(error_model="numpy")
def _eight(query, step, key, key_step, n):
    a0, b0, c0, d0 = _four(query, step, key, key_step, n)
    a1, b1, c1, d1 = _four(query, step, key + 4 * key_step, key_step, n)
    return simd.fold_f32_2(a0, a1), simd.fold_f32_2(b0, b1), simd.fold_f32_2(c0, c1), simd.fold_f32_2(d0, d1)


@njit(error_model="numpy")
def _score_sixteen(query, step, key, key_step, n, scores, row_bytes, scale):
    """Scores of four queries with sixteen keys, folded as `vecmath.dot_with_16` folds them."""
    a0, b0, c0, d0 = _eight(query, step, key, key_step, n)
    a1, b1, c1, d1 = _eight(query, step, key + 8 * key_step, key_step, n)
    by = simd.splat_f32(scale)
    simd.store_f32x16(scores, simd.mul_f32(simd.fold_f32_1(a0, a1), by))
    simd.store_f32x16(scores + row_bytes, simd.mul_f32(simd.fold_f32_1(b0, b1), by))
    simd.store_f32x16(scores + 2 * row_bytes, simd.mul_f32(simd.fold_f32_1(c0, c1), by))
    simd.store_f32x16(scores + 3 * row_bytes, simd.mul_f32(simd.fold_f32_1(d0, d1), by))


@njit(error_model="numpy")
def _mix_32(scores, row_bytes, n, values, value_cell, out, out_step):
    """Add weight times value of n cells, one after the other, to 32 values of four heads."""
    a, b = simd.load_f32x16(out), simd.load_f32x16(out + 64)
    c, d = simd.load_f32x16(out + out_step), simd.load_f32x16(out + out_step + 64)
    e, f = simd.load_f32x16(out + 2 * out_step), simd.load_f32x16(out + 2 * out_step + 64)
    g, h = simd.load_f32x16(out + 3 * out_step), simd.load_f32x16(out + 3 * out_step + 64)
    for i in range(n):
        v, w = simd.load_f32x16(values + i * value_cell), simd.load_f32x16(values + i * value_cell + 64)
        p = simd.splat_f32(simd.load_f32(scores + 4 * i))
        a, b = simd.add_f32(a, simd.mul_f32(p, v)), simd.add_f32(b, simd.mul_f32(p, w))
        p = simd.splat_f32(simd.load_f32(scores + row_bytes + 4 * i))
        c, d = simd.add_f32(c, simd.mul_f32(p, v)), simd.add_f32(d, simd.mul_f32(p, w))
        p = simd.splat_f32(simd.load_f32(scores + 2 * row_bytes + 4 * i))
        e, f = simd.add_f32(e, simd.mul_f32(p, v)), simd.add_f32(f, simd.mul_f32(p, w))
        p = simd.splat_f32(simd.load_f32(scores + 3 * row_bytes + 4 * i))
        g, h = simd.add_f32(g, simd.mul_f32(p, v)), simd.add_f32(h, simd.mul_f32(p, w))
    _store_two(out, a, b)
    _store_two(out + out_step, c, d)
    _store_two(out + 2 * out_step, e, f)
    _store_two(out + 3 * out_step, g, h)


@njit(error_model="numpy")
def _store_two(out, low, high):
    simd.store_f32x16(out, low)
    simd.store_f32x16(out + 64, high)


def attention_of_groups(arguments, window, counter, worker):
    """As `attention` over all cells that a token sees. Work is cut into (token, heads of the same keys)."""
    if slot(window, WINDOW_ROWS) < FEW_TOKENS:
        one_by_one(arguments, window, counter, worker)
        return
    heads, dim, value_dim = slot(arguments, HEADS), slot(arguments, HEAD_DIM), slot(arguments, VALUE_DIM)
    together = slot(arguments, QUERY_PER_KEY)
    groups = heads // together
    scores = slot(arguments, SCRATCH) + worker * slot(arguments, SCRATCH_BYTES)
    row_bytes = slot(arguments, SCRATCH_BYTES) // together // 64 * 64
    scale, value_cell, step = float_slot(arguments, SCALE), slot(arguments, VALUE_CELL), slot(arguments, QUERY_HEAD)
    whole = value_dim // 32 * 32
    while True:
        item = take(counter)
        if item >= slot(window, WINDOW_ROWS) * groups:
            return
        t, group = slot(window, WINDOW_ROWS) - 1 - item // groups, item % groups  # the longest first
        head = group * together
        query = slot(arguments, QUERY) + t * slot(arguments, QUERY_TOKEN) + head * step
        n = slot(window, WINDOW_POSITION) + t + 1
        hidden = max(0, n - slot(arguments, WINDOW))
        keys = slot(arguments, KEYS) + group * slot(arguments, KEY_HEAD) + 4 * hidden * dim
        values = slot(arguments, VALUES) + group * slot(arguments, VALUE_HEAD) + hidden * value_cell
        n, several = n - hidden, 0
        if dim % 16 == 0:
            several = n // 16 * 16
            for first in range(0, several, TILE):
                for h in range(0, together, 4):
                    for i in range(first, min(first + TILE, several), 16):
                        _score_sixteen(query + h * step, step, keys + 4 * i * dim, 4 * dim, dim,
                                       scores + h * row_bytes + 4 * i, row_bytes, scale)
        out = slot(arguments, OUT) + 4 * (t * heads + head) * value_dim
        for h in range(together):
            row = scores + h * row_bytes
            for i in range(several, n):
                simd.store_f32(row + 4 * i, vecmath.dot(query + h * step, keys + 4 * i * dim, dim) * scale)
            for c in range(0, whole, 16):
                simd.store_f32x16(out + 4 * (h * value_dim + c), simd.splat_f32(simd.f32_of_bits(0)))
        for h in range(together):
            row = scores + h * row_bytes
            top = vecmath.largest(row, n)
            if slot(arguments, SINKS) != 0:
                sink = simd.load_f32(slot(arguments, SINKS) + 4 * (head + h))
                if sink > top:
                    top = sink
            total = vecmath.exp_and_sum(row, n, top)
            if slot(arguments, SINKS) != 0:
                total = total + vecmath.exp(simd.load_f32(slot(arguments, SINKS) + 4 * (head + h)) - top)
            simd.store_f32(row + row_bytes - 4, total)
        for first in range(0, n, TILE):
            for h in range(0, together, 4):
                for c in range(0, whole, 32):
                    _mix_32(scores + h * row_bytes + 4 * first, row_bytes, min(TILE, n - first),
                            values + first * value_cell + 4 * c, value_cell, out + 4 * (h * value_dim + c), 4 * value_dim)
        for h in range(together):
            row, target = scores + h * row_bytes, out + 4 * h * value_dim
            total = simd.load_f32(row + row_bytes - 4)
            for c in range(0, whole, 16):
                simd.store_f32x16(target + 4 * c, simd.div_f32(simd.load_f32x16(target + 4 * c), simd.splat_f32(total)))
            for c in range(whole, value_dim):
                a = simd.f32_of_bits(0)
                for i in range(n):
                    a = a + simd.load_f32(row + 4 * i) * simd.load_f32(values + i * value_cell + 4 * c)
                simd.store_f32(target + 4 * c, a / total)
            if slot(arguments, GATE) != 0:
                for c in range(value_dim):
                    gate = vecmath.sigmoid(simd.load_f32(query + h * step + slot(arguments, GATE) + 4 * c))
                    simd.store_f32(target + 4 * c, simd.load_f32(target + 4 * c) * gate)


def dense_attention(queries_per_key: int, context: int) -> tuple[Callable, int]:
    """The kernel for attention over all cells that a token sees, and the bytes of scratch that it needs for each worker."""
    if queries_per_key % 4:
        return attention.attention_function(False), 4 * (context + 16)
    return attention_of_groups, queries_per_key * _row_bytes(context)

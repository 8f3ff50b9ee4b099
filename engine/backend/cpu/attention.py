"""Softmax attention of every token and query head over the cells it may see, on a float32 cache.

Scores, weights and values go cell by cell in ascending order, whatever else is in the window. The sparse form reads a list of
cells for each token (see sparse.py); the dense form sees the cells up to the token's own, all or the last few.
"""

from collections.abc import Callable
from functools import cache

from engine.backend.cpu import simd, vecmath
from engine.backend.cpu.kernel import WINDOW_POSITION, WINDOW_ROWS, float_slot, slot, specialise, take

(QUERY, QUERY_TOKEN, QUERY_HEAD, HEADS, QUERY_PER_KEY, HEAD_DIM, VALUE_DIM, KEYS, VALUES, KEY_HEAD, VALUE_HEAD, SCALE, GATE,
 OUT, CELLS, CELLS_TOKEN, SCRATCH, SCRATCH_BYTES, WINDOW, SINKS, VALUE_CELL) = range(21)
SPARSE = False  # given by `specialise`


def attention(arguments, window, counter, worker):
    """out[t, head, :] = sum over cells of softmax(q · k * scale) v, times sigmoid(gate) where there is one.

    Sinks f32 [heads] (0: none) are one more score of the softmax, without a value. Window: how many cells a token sees.
    Keys and values: f32 [kv heads, context, dim]; from one value to the next it is VALUE_CELL bytes. The gate stands behind
    each query head, GATE bytes on (0: none).
    Cells, if sparse: i32 [T, 1 + n], their number first.
    """
    heads, dim, value_dim = slot(arguments, HEADS), slot(arguments, HEAD_DIM), slot(arguments, VALUE_DIM)
    scores = slot(arguments, SCRATCH) + worker * slot(arguments, SCRATCH_BYTES)
    scale, value_cell = float_slot(arguments, SCALE), slot(arguments, VALUE_CELL)
    while True:
        item = take(counter)
        if item >= slot(window, WINDOW_ROWS) * heads:
            return
        t, head = slot(window, WINDOW_ROWS) - 1 - item // heads, item % heads  # the longest first
        query = slot(arguments, QUERY) + t * slot(arguments, QUERY_TOKEN) + head * slot(arguments, QUERY_HEAD)
        group = head // slot(arguments, QUERY_PER_KEY)
        keys = slot(arguments, KEYS) + group * slot(arguments, KEY_HEAD)
        values = slot(arguments, VALUES) + group * slot(arguments, VALUE_HEAD)
        n = slot(window, WINDOW_POSITION) + t + 1
        if not SPARSE:
            hidden = max(0, n - slot(arguments, WINDOW))
            keys, values, n = keys + 4 * hidden * dim, values + hidden * value_cell, n - hidden
        cells = slot(arguments, CELLS) + t * slot(arguments, CELLS_TOKEN)
        if SPARSE:
            n = simd.load_i32(cells)
        several = 0
        if not SPARSE and dim % 16 == 0:
            several = n // 16 * 16
            for i in range(0, several, 16):
                dots = vecmath.dot_with_16(query, keys + 4 * i * dim, 4 * dim, dim)
                simd.store_f32x16(scores + 4 * i, simd.mul_f32(dots, simd.splat_f32(scale)))
        for i in range(several, n):
            cell = i
            if SPARSE:
                cell = simd.load_i32(cells + 4 + 4 * i)
            simd.store_f32(scores + 4 * i, vecmath.dot(query, keys + 4 * cell * dim, dim) * scale)
        top = vecmath.largest(scores, n)
        if slot(arguments, SINKS) != 0:
            sink = simd.load_f32(slot(arguments, SINKS) + 4 * head)
            if sink > top:
                top = sink
        total = vecmath.exp_and_sum(scores, n, top)
        if slot(arguments, SINKS) != 0:
            total = total + vecmath.exp(simd.load_f32(slot(arguments, SINKS) + 4 * head) - top)
        out = slot(arguments, OUT) + 4 * (t * heads + head) * value_dim
        whole = value_dim // 64 * 64
        for c in range(0, whole, 64):
            a0 = simd.splat_f32(simd.f32_of_bits(0))
            a1, a2, a3 = a0, a0, a0
            for i in range(n):
                cell = i
                if SPARSE:
                    cell = simd.load_i32(cells + 4 + 4 * i)
                p = simd.splat_f32(simd.load_f32(scores + 4 * i))
                v = values + cell * value_cell + 4 * c
                a0 = simd.add_f32(a0, simd.mul_f32(p, simd.load_f32x16(v)))
                a1 = simd.add_f32(a1, simd.mul_f32(p, simd.load_f32x16(v + 64)))
                a2 = simd.add_f32(a2, simd.mul_f32(p, simd.load_f32x16(v + 128)))
                a3 = simd.add_f32(a3, simd.mul_f32(p, simd.load_f32x16(v + 192)))
            by = simd.splat_f32(total)
            simd.store_f32x16(out + 4 * c, simd.div_f32(a0, by))
            simd.store_f32x16(out + 4 * c + 64, simd.div_f32(a1, by))
            simd.store_f32x16(out + 4 * c + 128, simd.div_f32(a2, by))
            simd.store_f32x16(out + 4 * c + 192, simd.div_f32(a3, by))
        for c in range(whole, value_dim):
            a = simd.f32_of_bits(0)
            for i in range(n):
                cell = i
                if SPARSE:
                    cell = simd.load_i32(cells + 4 + 4 * i)
                a = a + simd.load_f32(scores + 4 * i) * simd.load_f32(values + cell * value_cell + 4 * c)
            simd.store_f32(out + 4 * c, a / total)
        if slot(arguments, GATE) != 0:
            for c in range(value_dim):
                gate = vecmath.sigmoid(simd.load_f32(query + slot(arguments, GATE) + 4 * c))
                simd.store_f32(out + 4 * c, simd.load_f32(out + 4 * c) * gate)


@cache
def attention_function(sparse: bool) -> Callable:
    """The attention kernel, over all cells or over lists of cells."""
    return specialise(attention, "sparse" if sparse else "dense", SPARSE=sparse)

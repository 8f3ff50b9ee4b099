"""Kernels of n-gram embeddings: rows of a hashed table for the last tokens, and their gate into the residual streams.

The table is read row by row where it lies in the mapped file: a task is one row, so page faults are waited for in parallel.
"""

from collections.abc import Callable
from functools import cache

import numpy as np

from engine.backend.cpu import rows, simd, vecmath
from engine.backend.cpu.kernel import WINDOW_POSITION, WINDOW_ROWS, float_slot, slot, specialise, take

(HISTORY, RESET, MULTIPLIERS, SIZES, OFFSETS, HEADS, PER_NGRAM, TABLE, ROW_BYTES, ROW_WIDTH, OUT, SCRATCH) = range(12)
SCRATCH_BYTES = 1024  # of a worker, for `expand_row`
expand_row = None  # given by `specialise`


def gather_ngrams(arguments, window, counter, worker):
    """out[t, head] = row of the table for the tokens that end at t: two of them for the first heads, then three, ….

    Exact integer arithmetic. A reset token, and whatever is before the text, hides itself and all that is older, but not
    when it is the newest. History i32 by position; multipliers, sizes and offsets i64.
    """
    heads, width = slot(arguments, HEADS), slot(arguments, ROW_WIDTH)
    while True:
        item = take(counter)
        if item >= slot(window, WINDOW_ROWS) * heads:
            return
        position, head = slot(window, WINDOW_POSITION) + item // heads, item % heads
        newest = slot(arguments, HISTORY) + 4 * position
        mixed = simd.load_i32(newest) * simd.load_i64(slot(arguments, MULTIPLIERS))
        hidden = False
        for back in range(1, head // slot(arguments, PER_NGRAM) + 2):
            token = slot(arguments, RESET)
            if back <= position and not hidden:
                token = simd.load_i32(newest - 4 * back)
            hidden = token == slot(arguments, RESET)
            mixed ^= token * simd.load_i64(slot(arguments, MULTIPLIERS) + 8 * back)
        row = mixed % simd.load_i64(slot(arguments, SIZES) + 8 * head) + simd.load_i64(slot(arguments, OFFSETS) + 8 * head)
        expand_row(slot(arguments, TABLE) + row * slot(arguments, ROW_BYTES), slot(arguments, OUT) + 4 * item * width,
                   width, slot(arguments, SCRATCH) + SCRATCH_BYTES * worker)


@cache
def gather_function(name: str) -> Callable:
    """The gathering kernel for a table of one format."""
    return specialise(gather_ngrams, name, expand_row=rows.expand_function(name))


_LEAST_SCORE = np.float32(1e-6)
(GATE_KEY, GATE_STREAM, GATE_VALUE, GATE_OUT, GATE_NORM_KEY, GATE_NORM_QUERY, GATE_NORM_OUT, GATE_WIDTH, GATE_STREAMS,
 GATE_EPS, GATE_SCRATCH, GATE_SCRATCH_BYTES) = range(12)


def gate_ngrams(arguments, window, counter, worker):
    """Add sigmoid(signed root of key · query / sqrt(width)) * value to every stream; out = what was added, normed.

    key (overwritten), stream and out f32 [T, streams, width], value f32 [T, width]; the query is the normed stream.
    """
    width, streams, eps = slot(arguments, GATE_WIDTH), slot(arguments, GATE_STREAMS), float_slot(arguments, GATE_EPS)
    scratch = slot(arguments, GATE_SCRATCH) + worker * slot(arguments, GATE_SCRATCH_BYTES)
    while True:
        item = take(counter)
        if item >= slot(window, WINDOW_ROWS) * streams:
            return
        key, stream = slot(arguments, GATE_KEY) + 4 * item * width, slot(arguments, GATE_STREAM) + 4 * item * width
        weights = 4 * (item % streams) * width
        rows.normalise(key, slot(arguments, GATE_NORM_KEY) + weights, key, width, eps)
        rows.normalise(stream, slot(arguments, GATE_NORM_QUERY) + weights, scratch, width, eps)
        score = vecmath.dot(key, scratch, width) / simd.sqrt_f32(simd.to_f32(width))
        root = simd.sqrt_f32(max(abs(score), _LEAST_SCORE))
        if score > 0:
            score = root
        elif score < 0:
            score = -root  # zero stays zero, and what is no number stays none
        gate, value = simd.splat_f32(vecmath.sigmoid(score)), slot(arguments, GATE_VALUE) + 4 * (item // streams) * width
        for i in range(0, width, 16):
            part = simd.mul_f32(gate, simd.load_f32x16(value + 4 * i))
            simd.store_f32x16(scratch + 4 * i, part)
            simd.store_f32x16(stream + 4 * i, simd.add_f32(simd.load_f32x16(stream + 4 * i), part))
        rows.normalise(scratch, slot(arguments, GATE_NORM_OUT) + weights, slot(arguments, GATE_OUT) + 4 * item * width,
                       width, eps)

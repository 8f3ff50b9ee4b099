"""Matrix products with F32, F16 and BF16 weights: float32 products in sixteen lanes, folded by halves.

Same arguments, groups and tasks as `matmul`; CODES is the address of float32 activations (rounded to the weight's type).
"""

from collections.abc import Callable
from functools import cache

from numba import njit

from engine.backend.cpu import matmul as quantized
from engine.backend.cpu import simd
from engine.backend.cpu.kernel import WINDOW_ROWS, slot, specialise, take
from engine.backend.cpu.matmul import factor_of, input_row, output_row

WEIGHT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
ELEMENT_BYTES = 0  # given by `specialise`
load16 = dot_tail = dot_4x1 = None


@njit(error_model="numpy")
def _load_f32(address):
    return simd.load_f32x16(address)


@njit(error_model="numpy")
def _load_f16(address):
    return simd.load_f16x16(address)


@njit(error_model="numpy")
def _load_bf16(address):
    return simd.load_bf16x16(address)


LOADERS = {"F32": _load_f32, "F16": _load_f16, "BF16": _load_bf16}


def _dot_tail(weights, x, whole, columns, total, scratch):
    """Add the columns that do not fill sixteen lanes, one by one."""
    if whole < columns:
        for i in range(columns - whole):  # copied first, so that a load of sixteen stays inside the map
            for byte in range(ELEMENT_BYTES):
                at = ELEMENT_BYTES * i + byte
                simd.store_i8(scratch + at, simd.load_u8(weights + ELEMENT_BYTES * whole + at))
        simd.store_f32x16(scratch + 64, load16(scratch))
        for i in range(columns - whole):
            total += simd.load_f32(scratch + 64 + 4 * i) * simd.load_f32(x + 4 * (whole + i))
    return total


def _dot_4x1(w0, w1, w2, w3, x, columns, scratch, out):
    """Four weight rows with one token, written at out[0..3]."""
    zero = simd.splat_f32(simd.f32_of_bits(0))
    a0, a1, a2, a3 = zero, zero, zero, zero
    whole = columns // 16 * 16
    for i in range(0, whole, 16):
        v, at = simd.load_f32x16(x + 4 * i), ELEMENT_BYTES * i
        a0 = simd.add_f32(a0, simd.mul_f32(load16(w0 + at), v))
        a1 = simd.add_f32(a1, simd.mul_f32(load16(w1 + at), v))
        a2 = simd.add_f32(a2, simd.mul_f32(load16(w2 + at), v))
        a3 = simd.add_f32(a3, simd.mul_f32(load16(w3 + at), v))
    simd.store_f32(out, dot_tail(w0, x, whole, columns, simd.sum_f32x16(a0), scratch))
    simd.store_f32(out + 4, dot_tail(w1, x, whole, columns, simd.sum_f32x16(a1), scratch))
    simd.store_f32(out + 8, dot_tail(w2, x, whole, columns, simd.sum_f32x16(a2), scratch))
    simd.store_f32(out + 12, dot_tail(w3, x, whole, columns, simd.sum_f32x16(a3), scratch))


def float_matmul(arguments, window, counter, worker):
    """out[pair] = weights[expert] · x[pair // per_token], or without groups out[t] = weights · x[row first + t]."""
    rows, row_bytes, columns = slot(arguments, quantized.ROWS), slot(arguments, quantized.ROW_BYTES), slot(
        arguments, quantized.COLUMNS)
    groups, pairs = slot(arguments, quantized.GROUPS), slot(arguments, quantized.PAIRS)
    scratch = slot(arguments, quantized.SCRATCH) + worker * slot(arguments, quantized.SCRATCH_BYTES)
    tiles = (rows + quantized.ROWS_PER_TASK - 1) // quantized.ROWS_PER_TASK
    n_groups, row_first = 1, 0
    if groups != 0:
        n_groups = simd.load_i64(groups)
    elif slot(arguments, quantized.FIRST_ROW) != 0:
        row_first = slot(window, slot(arguments, quantized.FIRST_ROW))
    while True:
        task = take(counter)
        if task >= n_groups * tiles:
            return
        expert, pair_first, count = 0, 0, 0
        if groups != 0:
            entry = groups + 8 + 24 * (task // tiles)
            expert, pair_first, count = simd.load_i64(entry), simd.load_i64(entry + 8), simd.load_i64(entry + 16)
        elif slot(arguments, quantized.FIRST_ROW) != 0:
            count = slot(window, slot(arguments, quantized.FIRST_ROW) + 1)
        else:
            count = slot(window, WINDOW_ROWS)
        start = task % tiles * quantized.ROWS_PER_TASK
        stop = min(start + quantized.ROWS_PER_TASK, rows)
        matrix = slot(arguments, quantized.WEIGHTS) + expert * slot(arguments, quantized.EXPERT_BYTES)
        factor = factor_of(arguments, expert)
        for r in range(start, stop, 4):
            w0 = matrix + r * row_bytes
            w1, w2, w3 = (matrix + min(r + 1, stop - 1) * row_bytes, matrix + min(r + 2, stop - 1) * row_bytes,
                          matrix + min(r + 3, stop - 1) * row_bytes)
            for t in range(count):
                i = input_row(pairs, pair_first, t, row_first, slot(arguments, quantized.PER_TOKEN))
                out = (slot(arguments, quantized.OUT)
                       + output_row(pairs, pair_first, t) * slot(arguments, quantized.OUT_STRIDE) + 4 * r)
                dot_4x1(w0, w1, w2, w3, slot(arguments, quantized.CODES) + 4 * i * columns, columns,
                        scratch, scratch + 128)
                for k in range(min(4, stop - r)):
                    simd.store_f32(out + 4 * k, simd.load_f32(scratch + 128 + 4 * k) * factor)


@cache
def float_matmul_function(name: str) -> Callable:
    """The kernel function for F32, F16 or BF16 weights."""
    constants = {"ELEMENT_BYTES": WEIGHT_BYTES[name], "load16": LOADERS[name]}
    tail = njit(specialise(_dot_tail, name, **constants), error_model="numpy")
    dot = njit(specialise(_dot_4x1, name, **constants, dot_tail=tail), error_model="numpy")
    return specialise(float_matmul, name, dot_4x1=dot)

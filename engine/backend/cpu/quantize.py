"""Activations as int8: the kinds that the weight formats multiply with, and plain casts for float weights.

Of one row of `columns` f32: codes int8 [columns]; scales f32, one a block of 32 or 256 (q8_k); sums i32, of 32 or 16 codes
(block_format.ACTIVATION_SHAPES); for q8_1 also f32 f16(scale * sum of codes). Rounding is half to even; scales of blocks
of 32 go through f16.
"""

from collections.abc import Callable
from functools import cache

from numba import njit

from engine.backend.cpu import simd
from engine.backend.cpu.block_format import ACTIVATION_SHAPES
from engine.backend.cpu.kernel import WINDOW_ROWS, slot, specialise, take

# argument slots
IN, COLUMNS, CODES, SCALES, SUMS, WEIGHTED_SUMS, ROWS_PER_TOKEN = range(7)
SLOTS = 7
KIND, SUM_GROUP = "", 0  # given by `specialise`


@njit(error_model="numpy")
def round_to_f16(x):
    """x rounded to f16 (half to even, overflow to infinity), as f32. The same bits on every machine."""
    bits = simd.bits_of_f32(x)
    sign, magnitude = bits & ~0x7FFFFFFF, bits & 0x7FFFFFFF
    if magnitude >= 0x7F800000:  # infinity or NaN
        return x
    if magnitude < 0x38800000:  # below the smallest normal f16: round to multiples of 2**-24
        small = simd.f32_of_bits(magnitude) + simd.f32_of_bits(0x3F000000)  # + 0.5, whose last place is 2**-24
        small = small - simd.f32_of_bits(0x3F000000)
        return simd.f32_of_bits(sign | simd.bits_of_f32(small))
    magnitude = (magnitude + 0xFFF + ((magnitude >> 13) & 1)) & ~0x1FFF
    if magnitude >= 0x47800000:
        magnitude = 0x7F800000
    return simd.f32_of_bits(sign | magnitude)


@njit(error_model="numpy")
def round_to_bf16(x):
    """x rounded to bf16 (half to even), as f32."""
    bits = simd.bits_of_f32(x)
    if (bits & 0x7FFFFFFF) > 0x7F800000:  # NaN keeps its quiet bit
        return x
    return simd.f32_of_bits((bits + 0x7FFF + ((bits >> 16) & 1)) & ~0xFFFF)


@njit(error_model="numpy")
def _largest(x, n):
    """Greatest |x| of n values, n a multiple of 16."""
    zero = simd.splat_f32(simd.f32_of_bits(0))
    top = zero
    for i in range(0, n, 16):
        v = simd.load_f32x16(x + 4 * i)
        top = simd.max_f32(top, simd.max_f32(v, simd.sub_f32(zero, v)))
    return simd.max_f32x16(top)


@njit(error_model="numpy")
def _block_32(x, codes, scale, sums, sum_group, weighted, is_q8_1):
    top = _largest(x, 32)
    d = top / simd.f32_of_bits(0x42FE0000)  # 127
    inverse = simd.f32_of_bits(0)
    if d > 0:
        inverse = simd.f32_of_bits(0x3F800000) / d
    first = simd.round_to_bytes(codes, simd.mul_f32(simd.load_f32x16(x), simd.splat_f32(inverse)))
    second = simd.round_to_bytes(codes + 16, simd.mul_f32(simd.load_f32x16(x + 64), simd.splat_f32(inverse)))
    simd.store_f32(scale, round_to_f16(d))
    if sum_group == 16:
        simd.store_i32(sums, first)
        simd.store_i32(sums + 4, second)
    else:
        simd.store_i32(sums, first + second)
    if is_q8_1:
        simd.store_f32(weighted, round_to_f16(d * simd.to_f32(first + second)))


@njit(error_model="numpy")
def _block_256(x, codes, scale, sums):
    """The value of largest magnitude (the first of equals) keeps its sign and becomes -127."""
    top = _largest(x, 256)
    extreme = top
    for i in range(256):
        v = simd.load_f32(x + 4 * i)
        if v == top or v == -top:
            extreme = v
            break
    inverse = simd.f32_of_bits(0)
    d = inverse
    if top > 0:
        inverse = simd.f32_of_bits(0xC2FE0000 - (1 << 32)) / extreme  # -127
        d = simd.f32_of_bits(0x3F800000) / inverse
    for i in range(0, 256, 16):
        scaled = simd.mul_f32(simd.splat_f32(inverse), simd.load_f32x16(x + 4 * i))
        simd.store_i32(sums + 4 * (i // 16), simd.round_to_bytes(codes + i, scaled))
    simd.store_f32(scale, d)


def quantize(arguments, window, counter, worker):
    """Quantize every row of the window."""
    columns = slot(arguments, COLUMNS)
    rows = slot(window, WINDOW_ROWS) * slot(arguments, ROWS_PER_TOKEN)
    while True:
        row = take(counter)
        if row >= rows:
            return
        quantize_row(slot(arguments, IN) + 4 * row * columns, columns, row, slot(arguments, CODES),
                     slot(arguments, SCALES), slot(arguments, SUMS), slot(arguments, WEIGHTED_SUMS))


def quantize_row(x, columns, row, codes, scales, sums, weighted):
    """Quantize one row of f32 at `x` into row `row` of the activation buffers."""
    if KIND == "f16" or KIND == "bf16":  # rounded, kept as f32, in the place of the codes
        for i in range(columns):
            v = simd.load_f32(x + 4 * i)
            if KIND == "f16":
                v = round_to_f16(v)
            else:
                v = round_to_bf16(v)
            simd.store_f32(codes + 4 * (row * columns + i), v)
    elif KIND == "q8_k":
        for b in range(columns // 256):
            at = row * (columns // 256) + b
            _block_256(x + 1024 * b, codes + row * columns + 256 * b, scales + 4 * at, sums + 64 * at)
    else:
        for b in range(columns // 32):
            at = row * (columns // 32) + b
            _block_32(x + 128 * b, codes + row * columns + 32 * b, scales + 4 * at, sums + 4 * (32 // SUM_GROUP) * at,
                      SUM_GROUP, weighted + 4 * at, KIND == "q8_1")


@cache
def row_function(kind: str) -> Callable:
    """`quantize_row` for one activation kind, compiled when first used inside a kernel."""
    _, sum_group = ACTIVATION_SHAPES.get(kind, (0, 0))  # a cast has no sums
    return njit(specialise(quantize_row, kind, KIND=kind, SUM_GROUP=sum_group or 1), error_model="numpy")


@cache
def quantize_function(kind: str) -> Callable:
    """The kernel function for one activation kind."""
    return specialise(quantize, kind, quantize_row=row_function(kind))

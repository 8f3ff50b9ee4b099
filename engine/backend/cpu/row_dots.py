"""One row of quantized weights with one token, generated for each format: the path of decoding.

Sums are those of `matmul`'s tiles: an exact int32 for each step of elements that share their floats, then f32 step by
step in order. The formats that most weights are in have row dots written by hand in `fused`, with the same bits.
"""

from collections.abc import Callable
from types import MappingProxyType

from numba import njit

from engine.backend.cpu import bits, fused, simd, unpack
from engine.backend.cpu.block_format import compiled
from engine.backend.cpu.kernel import specialise

# constants and functions of the format (block_format.Format.constants), given by `specialise`
ELEMENTS = BLOCK_BYTES = GROUP = OFFSET = 0
HAS_SCALES = HAS_INT_MINS = HAS_FLOAT_MIN = HAS_SIGNS = UNIFORM = False
codes_of = magnitudes_of = signs_of = d_of = m_of = scale_of = minimum_of = None
dot_part = add_part = part_minus = dot_block = block_minus = eight_of_16 = None  # the parts below


def _dot_part(block, part, token):
    """Products of 32 weights with 32 activation codes, in eight lanes; without the offset."""
    if HAS_SIGNS:
        return simd.dot_i8x32(simd.zero_i32x8(0), magnitudes_of(block, part),
                              bits.negate_i8x32(simd.load_i8x32(token), signs_of(block, part)))
    return simd.dot_i8x32(simd.zero_i32x8(0), codes_of(block, part), simd.load_i8x32(token))


def _add_part(lanes, block, part, token):
    """lanes + scale * products of one part of a block of 256; `token` is the first of the block's activations."""
    dot = dot_part(block, part, token + 32 * part)
    if not HAS_SCALES:
        return simd.add_i32x8(lanes, dot)
    if GROUP == 32:
        return simd.add_i32x8(lanes, simd.mul_i32x8(dot, simd.splat_i32x8(scale_of(block, part))))
    low, high = scale_of(block, 2 * part), scale_of(block, 2 * part + 1)
    return simd.add_i32x8(lanes, simd.mul_i32x8(dot, simd.halves_i32x8(low, high)))


def _part_minus(block, part, token_sums):
    """What the offset and the minimums of 32 weights take away, in integers."""
    s0, s1 = simd.load_i32(token_sums + 8 * part), simd.load_i32(token_sums + 8 * part + 4)
    if GROUP == 32:
        return (OFFSET * scale_of(block, part) + minimum_of(block, part)) * (s0 + s1)
    return ((OFFSET * scale_of(block, 2 * part) + minimum_of(block, 2 * part)) * s0
            + (OFFSET * scale_of(block, 2 * part + 1) + minimum_of(block, 2 * part + 1)) * s1)


def _dot_block(block, token):
    """lanes of one block of 256: written out where a part's number has to be a constant, because it says what to shift by."""
    lanes = simd.zero_i32x8(0)
    if UNIFORM:
        for part in range(8):
            lanes = add_part(lanes, block, part, token)
        return lanes
    for part in range(0, 8, 4):
        lanes = add_part(add_part(lanes, block, part, token), block, part + 1, token)
        lanes = add_part(add_part(lanes, block, part + 2, token), block, part + 3, token)
    return lanes


def _block_minus(block, s):
    """What the offset and the minimums of one block of 256 take away."""
    if HAS_SIGNS or not (OFFSET or HAS_INT_MINS):
        return 0
    minus = 0
    for part in range(8):
        minus += part_minus(block, part, s)
    return minus


def _dot_row_256(weights, columns, codes, scales, sums, weighted):
    """One weight row of 256-element blocks with one token: f32. `codes`, `scales`, … are the token's."""
    total = simd.f32_of_bits(0)
    for b in range(columns // 256):
        block = weights + b * BLOCK_BYTES
        exact, minus = simd.sum_i32x8(dot_block(block, codes + 256 * b)), block_minus(block, sums + 64 * b)
        d8 = simd.load_f32(scales + 4 * b)
        if HAS_INT_MINS:
            total = total + ((d_of(block, 0) * d8) * simd.to_f32(exact) - (m_of(block, 0) * d8) * simd.to_f32(minus))
        else:
            total = total + (d_of(block, 0) * d8) * simd.to_f32(exact - minus)
    return total


def _dot_row_32(weights, columns, codes, scales, sums, weighted):
    """One weight row of blocks with steps of 32: eight such parts at a time, then the rest."""
    total = simd.f32_of_bits(0)
    parts = ELEMENTS // 32
    for first in range(0, columns // 256 * 256, 256):
        w, a, at = weights + first // ELEMENTS * BLOCK_BYTES, codes + first, first // 8
        b0, b1, b2, b3 = w, w + 1 // parts * BLOCK_BYTES, w + 2 // parts * BLOCK_BYTES, w + 3 // parts * BLOCK_BYTES
        b4, b5 = w + 4 // parts * BLOCK_BYTES, w + 5 // parts * BLOCK_BYTES
        b6, b7 = w + 6 // parts * BLOCK_BYTES, w + 7 // parts * BLOCK_BYTES
        eight = simd.fold_1(
            simd.fold_2(simd.fold_4(dot_part(b0, 0, a), dot_part(b1, 1 % parts, a + 32)),
                        simd.fold_4(dot_part(b2, 2 % parts, a + 64), dot_part(b3, 3 % parts, a + 96))),
            simd.fold_2(simd.fold_4(dot_part(b4, 4 % parts, a + 128), dot_part(b5, 5 % parts, a + 160)),
                        simd.fold_4(dot_part(b6, 6 % parts, a + 192), dot_part(b7, 7 % parts, a + 224))))
        if OFFSET:
            eight = simd.sub_scaled_i32x8(eight, simd.load_i32x8(sums + at), OFFSET)
        d = simd.pack_f32x8(d_of(b0, 0), d_of(b1, 0), d_of(b2, 0), d_of(b3, 0),
                            d_of(b4, 0), d_of(b5, 0), d_of(b6, 0), d_of(b7, 0))
        term = simd.mul_f32x8(simd.mul_f32x8(d, simd.load_f32x8(scales + at)), simd.f32_of_i32x8(eight))
        if HAS_FLOAT_MIN:
            m = simd.pack_f32x8(m_of(b0, 0), m_of(b1, 0), m_of(b2, 0), m_of(b3, 0),
                                m_of(b4, 0), m_of(b5, 0), m_of(b6, 0), m_of(b7, 0))
            term = simd.add_f32x8(term, simd.mul_f32x8(m, simd.load_f32x8(weighted + at)))
        total = simd.sum_in_order(total, term)
    for part in range(columns // 256 * 8, columns // 32):
        block, at = weights + part // parts * BLOCK_BYTES, 4 * part
        exact = simd.sum_i32x8(dot_part(block, part % parts, codes + 32 * part)) - OFFSET * simd.load_i32(sums + at)
        term = (d_of(block, 0) * simd.load_f32(scales + at)) * simd.to_f32(exact)
        if HAS_FLOAT_MIN:
            term = term + m_of(block, 0) * simd.load_f32(weighted + at)
        total = total + term
    return total


def _eight_of_16(block, token, sums):
    """Integer sums of eight runs of 16 weights, in two blocks of 64."""
    eight = simd.fold_1(
        simd.fold_2(dot_part(block, 0, token), dot_part(block, 1, token + 32)),
        simd.fold_2(dot_part(block + BLOCK_BYTES, 0, token + 64), dot_part(block + BLOCK_BYTES, 1, token + 96)))
    return simd.sub_scaled_i32x8(eight, simd.load_i32x8(sums), OFFSET)


def _dot_row_16(weights, columns, codes, scales, sums, weighted):
    """One weight row of 64-element blocks with steps of 16 and activations with a scale for 32: two blocks at a time."""
    total = simd.f32_of_bits(0)
    for first in range(0, columns // 128 * 128, 128):
        b0, at = weights + first // 64 * BLOCK_BYTES, scales + first // 8
        b1 = b0 + BLOCK_BYTES
        a0, a1, a2, a3 = (simd.load_f32(at), simd.load_f32(at + 4), simd.load_f32(at + 8), simd.load_f32(at + 12))
        d = simd.pack_f32x8(d_of(b0, 0), d_of(b0, 1), d_of(b0, 2), d_of(b0, 3),
                            d_of(b1, 0), d_of(b1, 1), d_of(b1, 2), d_of(b1, 3))
        term = simd.mul_f32x8(d, simd.pack_f32x8(a0, a0, a1, a1, a2, a2, a3, a3))
        eight = eight_of_16(b0, codes + first, sums + first // 4)
        total = simd.sum_in_order(total, simd.mul_f32x8(term, simd.f32_of_i32x8(eight)))
    if columns % 128:
        first = columns - 64
        block, at = weights + first // 64 * BLOCK_BYTES, first // 8
        for part in range(2):
            d8, lanes = simd.load_f32(scales + at + 4 * part), dot_part(block, part, codes + first + 32 * part)
            pairs = simd.fold_1(simd.fold_2(lanes, lanes), simd.fold_2(lanes, lanes))  # the two sums, four times over
            for k in range(2):
                exact = simd.lane_i32x8(pairs, k) - OFFSET * simd.load_i32(sums + first // 4 + 8 * part + 4 * k)
                total = total + (d_of(block, 2 * part + k) * d8) * simd.to_f32(exact)
    return total


_ROW_DOTS = MappingProxyType({256: _dot_row_256, 32: _dot_row_32, 16: _dot_row_16})  # by the format's step


def row_dot(name: str) -> Callable:
    """The row dot of a format: f32 out of (weights, columns, codes, scales, sums, weighted)."""
    if name in fused.ROW_DOTS:
        return fused.ROW_DOTS[name]
    form = unpack.FORMATS[name]
    constants = form.constants

    def part(function: Callable, **others: Callable) -> Callable:
        return compiled(specialise(function, name, **constants, **others))

    dot = part(_dot_part)
    parts = {"dot_part": dot, "eight_of_16": part(_eight_of_16, dot_part=dot),
             "dot_block": part(_dot_block, add_part=part(_add_part, dot_part=dot)),
             "block_minus": part(_block_minus, part_minus=part(_part_minus))}
    return njit(specialise(_ROW_DOTS[form.step], name, **constants, **parts), error_model="numpy")

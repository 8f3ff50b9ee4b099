"""Row dots written by hand for the formats that most weights are in, for AVX-512 VNNI.

They give the same bits as the generated row dots of `matmul`, which the other tiers use: the integer part is exact, and
the float part is the same operations. At T = 1 memory is the bound if a block of 144 bytes takes under 40 cycles.
"""

from collections.abc import Callable
from types import MappingProxyType

from llvmlite import ir
from numba import njit, types

from engine.backend.cpu import isa, simd


def _words_of_bytes(lanes, *, signed: bool):
    """An operation: i32 lanes out of the eight bytes of an i64, byte `lanes[i]` in lane i."""
    def emit(b, word):
        few = b.bitcast(word, ir.VectorType(ir.IntType(8), 8))
        kind = ir.VectorType(ir.IntType(32), 8)
        wide = b.sext(few, kind) if signed else b.zext(few, kind)
        return b.shuffle_vector(wide, wide, simd.lane_mask(lanes))
    return simd.operation(simd.i32x16, [types.int64], emit)


# Q4_K: 64 bytes hold groups 4h and 4h + 2 in their low nibbles, 4h + 1 and 4h + 3 in the high ones
_scales_0_2, _scales_1_3, _scales_4_6, _scales_5_7 = (
    _words_of_bytes([a] * 8 + [a + 2] * 8, signed=False) for a in (0, 1, 4, 5))
_mins_in_pairs = _words_of_bytes([i // 2 for i in range(16)], signed=False)


@njit(error_model="numpy")
def _low_words(address):
    """The u32 at an address as a non-negative int64."""
    return simd.load_i32(address) & 0xFFFFFFFF


@njit(error_model="numpy")
def _apart(codes):
    """64 activation codes, of which the second half stands 32 bytes further."""
    return simd.join_halves(simd.load_i8x32(codes), simd.load_i8x32(codes + 64))


@njit(error_model="numpy")
def _dot_q4_k(weights, columns, codes, scales, sums, weighted):
    total = simd.f32_of_bits(0)
    fifteen, zero = simd.splat_i8(15), simd.splat_i32(0)
    for b in range(columns // 256):
        block, a = weights + 144 * b, codes + 256 * b
        u0, u1, u2 = _low_words(block + 4), _low_words(block + 8), _low_words(block + 12)
        scale = (u0 & 0x3F3F3F3F) | (((u2 & 0x0F0F0F0F) | (((u0 >> 6) & 0x03030303) << 4)) << 32)
        minimum = (u1 & 0x3F3F3F3F) | ((((u2 >> 4) & 0x0F0F0F0F) | (((u1 >> 6) & 0x03030303) << 4)) << 32)
        q = simd.load_i8x64(block + 16)
        lanes = simd.dot_words(
            zero, simd.dot_i8x64(zero, simd.and_i8x64(q, fifteen), _apart(a)), _scales_0_2(scale))
        lanes = simd.dot_words(
            lanes, simd.dot_i8x64(zero, simd.shr_i8x64(q, 4), _apart(a + 32)), _scales_1_3(scale))
        q = simd.load_i8x64(block + 80)
        lanes = simd.dot_words(
            lanes, simd.dot_i8x64(zero, simd.and_i8x64(q, fifteen), _apart(a + 128)), _scales_4_6(scale))
        lanes = simd.dot_words(
            lanes, simd.dot_i8x64(zero, simd.shr_i8x64(q, 4), _apart(a + 160)), _scales_5_7(scale))
        minus = simd.mul_i32(_mins_in_pairs(minimum), simd.load_i32x16(sums + 64 * b))
        d8 = simd.load_f32(scales + 4 * b)
        term = (simd.load_f16(block) * d8) * simd.to_f32(simd.sum_i32x16(lanes))
        total = total + (term - (simd.load_f16(block + 2) * d8) * simd.to_f32(simd.sum_i32x16(minus)))
    return total


# Q6_K: one 16-byte group a scale, so four scales in the lanes of 64 codes
_first_four, _last_four = (_words_of_bytes([first + lane // 4 for lane in range(16)], signed=True) for first in (0, 4))


@njit(error_model="numpy")
def _dot_q6_k(weights, columns, codes, scales, sums, weighted):
    total = simd.f32_of_bits(0)
    fifteen, three, zero = simd.splat_i8(15), simd.splat_i8(3), simd.splat_i32(0)
    for b in range(columns // 256):
        block, a = weights + 210 * b, codes + 256 * b
        # sum of (q - 32) scale x = sum of scale (q x) - 32 sum of scale (sum of x)
        lanes = simd.mul_i32(simd.load_s8x16(block + 192), simd.load_i32x16(sums + 64 * b))
        lanes = simd.mul_i32(lanes, simd.splat_i32(-32))
        for half in range(2):
            low = simd.load_i8x64(block + 64 * half)
            high = simd.load_i8x32(block + 128 + 32 * half)
            both = simd.join_halves(high, simd.shr_i8x32(high, 2))  # for the low nibbles; four bits on for the high ones
            scale = simd.load_i64(block + 192 + 8 * half)
            at = a + 128 * half
            q = simd.or_i8x64(simd.and_i8x64(low, fifteen), simd.shl_i8x64(simd.and_i8x64(both, three), 4))
            lanes = simd.add_i32(lanes, simd.mul_i32(
                simd.dot_i8x64(zero, q, simd.load_i8x64(at)), _first_four(scale)))
            both = simd.shr_i8x64(both, 4)
            q = simd.or_i8x64(simd.shr_i8x64(low, 4), simd.shl_i8x64(simd.and_i8x64(both, three), 4))
            lanes = simd.add_i32(lanes, simd.mul_i32(
                simd.dot_i8x64(zero, q, simd.load_i8x64(at + 64)), _last_four(scale)))
        exact = simd.sum_i32x16(lanes)
        total = total + (simd.load_f16(block + 208) * simd.load_f32(scales + 4 * b)) * simd.to_f32(exact)
    return total


@njit(error_model="numpy")
def _dot_q8_0(weights, columns, codes, scales, sums, weighted):
    total = simd.f32_of_bits(0)
    flip = simd.splat_i8x32(128)
    for b in range(columns // 32):
        block = weights + 34 * b
        q = simd.add_i8x32(simd.load_i8x32(block + 2), flip)
        exact = simd.sum_i32x8(simd.dot_i8x32(simd.zero_i32x8(0), q, simd.load_i8x32(codes + 32 * b)))
        exact -= 128 * simd.load_i32(sums + 4 * b)
        total = total + (simd.load_f16(block) * simd.load_f32(scales + 4 * b)) * simd.to_f32(exact)
    return total


_BY_HAND: dict[str, Callable] = {"Q4_K": _dot_q4_k, "Q6_K": _dot_q6_k, "Q8_0": _dot_q8_0}
ROW_DOTS = MappingProxyType(_BY_HAND if isa.tier() == "vnni" else {})

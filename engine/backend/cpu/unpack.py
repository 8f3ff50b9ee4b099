"""Block formats for the kernels: how one block becomes unsigned codes, integer scales and floats.

A weight is  d * scale[g] * (code - offset) - m * min[g]  with integer scale and min of its group g, or, for the formats with
a float minimum, d * code + m. Layouts: the GGUF block definitions; a format is one entry of FORMATS.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gguf import quants as gguf_quants
from numba import njit

from engine.backend.cpu import simd

# activation kinds (see quantize.py)
Q8_0, Q8_1, Q8_K = "q8_0", "q8_1", "q8_k"


@dataclass(frozen=True)
class Format:
    """One block format.

    `unpack(block, codes, scales, mins, stride) -> (d, m)` writes `elements` bytes at `codes`, and where the format has
    them the i32 scale and min of group g at `scales + g * stride` and `mins + g * stride`. All are addresses.
    """

    name: str
    elements: int
    block_bytes: int
    activation: str
    unpack: Callable
    group: int  # elements that share an integer scale
    offset: int = 0
    has_scales: bool = False
    has_int_mins: bool = False
    has_float_min: bool = False

    @property
    def activation_block(self) -> int:
        """Elements that share an activation scale; a weight block holds one or more of them."""
        return 256 if self.activation == Q8_K else 32


_ZERO = np.float32(0)


def _plain(function: Callable) -> Callable:
    return njit(function, error_model="numpy")


@_plain
def _q4_0(block, codes, scales, mins, stride):
    simd.store_i8x32(codes, simd.nibbles_i8x32(block + 2))
    return simd.load_f16(block), _ZERO


@_plain
def _q4_1(block, codes, scales, mins, stride):
    simd.store_i8x32(codes, simd.nibbles_i8x32(block + 4))
    return simd.load_f16(block), simd.load_f16(block + 2)


@_plain
def _fifth_bit(word):
    return simd.and_i8x32(simd.spread_bits(word), simd.splat_i8x32(16))


@_plain
def _q5_0(block, codes, scales, mins, stride):
    simd.store_i8x32(codes, simd.or_i8x32(simd.nibbles_i8x32(block + 6), _fifth_bit(simd.load_i32(block + 2))))
    return simd.load_f16(block), _ZERO


@_plain
def _q5_1(block, codes, scales, mins, stride):
    simd.store_i8x32(codes, simd.or_i8x32(simd.nibbles_i8x32(block + 8), _fifth_bit(simd.load_i32(block + 4))))
    return simd.load_f16(block), simd.load_f16(block + 2)


@_plain
def _q8_0(block, codes, scales, mins, stride):
    simd.store_i8x32(codes, simd.add_i8x32(simd.load_i8x32(block + 2), simd.splat_i8x32(128)))
    return simd.load_f16(block), _ZERO


@_plain
def _q2_0(block, codes, scales, mins, stride):
    simd.store_i8x64(codes, simd.crumbs_i8x64(block + 2))
    return simd.load_f16(block), _ZERO


_nonlinear = simd.lookup_i8x32([int(v) + 128 for v in gguf_quants.IQ4_NL.kvalues])


@_plain
def _iq4_nl(block, codes, scales, mins, stride):
    simd.store_i8x32(codes, _nonlinear(simd.nibbles_i8x32(block + 2)))
    return simd.load_f16(block), _ZERO


@_plain
def _scales_and_mins(packed, scales, mins, stride):
    """Eight 6-bit scales and mins out of the twelve bytes of Q4_K and Q5_K."""
    for j in range(4):
        a, b, c = simd.load_u8(packed + j), simd.load_u8(packed + 4 + j), simd.load_u8(packed + 8 + j)
        simd.store_i32(scales + j * stride, a & 63)
        simd.store_i32(mins + j * stride, b & 63)
        simd.store_i32(scales + (j + 4) * stride, (c & 15) | ((a >> 6) << 4))
        simd.store_i32(mins + (j + 4) * stride, (c >> 4) | ((b >> 6) << 4))


@_plain
def _q4_k(block, codes, scales, mins, stride):
    _scales_and_mins(block + 4, scales, mins, stride)
    for j in range(4):
        q = simd.load_i8x32(block + 16 + 32 * j)
        simd.store_i8x32(codes + 64 * j, simd.and_i8x32(q, simd.splat_i8x32(15)))
        simd.store_i8x32(codes + 64 * j + 32, simd.shr_i8x32(q, 4))
    return simd.load_f16(block), simd.load_f16(block + 2)


@_plain
def _q5_k(block, codes, scales, mins, stride):
    _scales_and_mins(block + 4, scales, mins, stride)
    high, one = simd.load_i8x32(block + 16), simd.splat_i8x32(1)
    for j in range(4):
        q = simd.load_i8x32(block + 48 + 32 * j)
        bit = simd.and_i8x32(simd.shr_i8x32(high, 2 * j), one)
        simd.store_i8x32(codes + 64 * j,
                         simd.or_i8x32(simd.and_i8x32(q, simd.splat_i8x32(15)), simd.shl_i8x32(bit, 4)))
        bit = simd.and_i8x32(simd.shr_i8x32(high, 2 * j + 1), one)
        simd.store_i8x32(codes + 64 * j + 32, simd.or_i8x32(simd.shr_i8x32(q, 4), simd.shl_i8x32(bit, 4)))
    return simd.load_f16(block), simd.load_f16(block + 2)


@_plain
def _q6_k(block, codes, scales, mins, stride):
    fifteen, three = simd.splat_i8x32(15), simd.splat_i8x32(3)
    for half in range(2):
        q0, q1 = simd.load_i8x32(block + 64 * half), simd.load_i8x32(block + 64 * half + 32)
        high = simd.load_i8x32(block + 128 + 32 * half)
        out = codes + 128 * half
        simd.store_i8x32(out, simd.or_i8x32(
            simd.and_i8x32(q0, fifteen), simd.shl_i8x32(simd.and_i8x32(high, three), 4)))
        simd.store_i8x32(out + 32, simd.or_i8x32(
            simd.and_i8x32(q1, fifteen), simd.shl_i8x32(simd.and_i8x32(simd.shr_i8x32(high, 2), three), 4)))
        simd.store_i8x32(out + 64, simd.or_i8x32(
            simd.shr_i8x32(q0, 4), simd.shl_i8x32(simd.and_i8x32(simd.shr_i8x32(high, 4), three), 4)))
        simd.store_i8x32(out + 96, simd.or_i8x32(
            simd.shr_i8x32(q1, 4), simd.shl_i8x32(simd.shr_i8x32(high, 6), 4)))
    for g in range(16):
        simd.store_i32(scales + g * stride, simd.load_s8(block + 192 + g))
    return simd.load_f16(block + 208), _ZERO


FORMATS = {entry.name: entry for entry in (
    Format("Q2_0", 64, 18, Q8_0, _q2_0, 32, offset=1),
    Format("Q4_0", 32, 18, Q8_0, _q4_0, 32, offset=8),
    Format("Q4_1", 32, 20, Q8_1, _q4_1, 32, has_float_min=True),
    Format("Q5_0", 32, 22, Q8_0, _q5_0, 32, offset=16),
    Format("Q5_1", 32, 24, Q8_1, _q5_1, 32, has_float_min=True),
    Format("Q8_0", 32, 34, Q8_0, _q8_0, 32, offset=128),
    Format("IQ4_NL", 32, 18, Q8_0, _iq4_nl, 32, offset=128),
    Format("Q4_K", 256, 144, Q8_K, _q4_k, 32, has_scales=True, has_int_mins=True),
    Format("Q5_K", 256, 176, Q8_K, _q5_k, 32, has_scales=True, has_int_mins=True),
    Format("Q6_K", 256, 210, Q8_K, _q6_k, 16, offset=32, has_scales=True),
)}

"""Block formats for the kernels: how one block becomes unsigned codes, integer scales and floats.

A weight is  d * scale[g] * (code - offset) - m * min[g]  with the integer scale and min of its group g, or, for the formats
with a float minimum, d * code + m. Layouts: the GGUF block definitions. A format is one entry of FORMATS; its functions take
the address of a block and are compiled into the kernels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from gguf import quants as gguf_quants
from numba import njit

from engine.backend.cpu import simd

# activation kinds (see quantize.py)
Q8_0, Q8_1, Q8_K = "q8_0", "q8_1", "q8_k"


def _compiled(function: Callable) -> Callable:
    return njit(function, error_model="numpy")


@cache
def _half_at(offset: int) -> Callable:
    """A function that reads the f16 at an offset of a block."""
    return _compiled(lambda block: simd.load_f16(block + offset))


@_compiled
def _one(block, group):
    return 1


@_compiled
def _nothing(block, group):
    return 0


@dataclass(frozen=True, kw_only=True)
class Format:
    """One block format."""

    name: str
    elements: int
    block_bytes: int
    activation: str
    group: int  # elements that share an integer scale
    codes: Callable  # (block, part) -> the 32 codes of elements 32 * part …, as i8x32
    d: Callable  # (block) -> f32
    m: Callable | None = None  # (block) -> f32
    scale: Callable = _one  # (block, group) -> int
    minimum: Callable = _nothing  # (block, group) -> int
    offset: int = 0

    @property
    def activation_block(self) -> int:
        """Elements that share an activation scale; a weight block holds one or more of them."""
        return 256 if self.activation == Q8_K else 32

    @property
    def constants(self) -> dict[str, Any]:
        """What a kernel for this format is specialised with."""
        has_mins = self.minimum is not _nothing
        return {
            "ELEMENTS": self.elements, "BLOCK_BYTES": self.block_bytes, "GROUP": self.group, "OFFSET": self.offset,
            "ACTIVATION_BLOCK": self.activation_block, "SUM_GROUP": 16 if self.activation == Q8_K else 32,
            "HAS_SCALES": self.scale is not _one, "HAS_INT_MINS": has_mins,
            "HAS_FLOAT_MIN": self.m is not None and not has_mins,
            "codes_of": self.codes, "d_of": self.d, "m_of": self.m or self.d, "scale_of": self.scale,
            "minimum_of": self.minimum}


@_compiled
def _fifth_bit(word):
    return simd.and_i8x32(simd.spread_bits(word), simd.splat_i8x32(16))


@_compiled
def _q2_0_codes(block, part):
    return simd.crumbs_i8x32(block + 2 + 8 * part)


@_compiled
def _q4_0_codes(block, part):
    return simd.nibbles_i8x32(block + 2)


@_compiled
def _q4_1_codes(block, part):
    return simd.nibbles_i8x32(block + 4)


@_compiled
def _q5_0_codes(block, part):
    return simd.or_i8x32(simd.nibbles_i8x32(block + 6), _fifth_bit(simd.load_i32(block + 2)))


@_compiled
def _q5_1_codes(block, part):
    return simd.or_i8x32(simd.nibbles_i8x32(block + 8), _fifth_bit(simd.load_i32(block + 4)))


@_compiled
def _q8_0_codes(block, part):
    return simd.add_i8x32(simd.load_i8x32(block + 2), simd.splat_i8x32(128))


_nonlinear = simd.lookup_i8x32([int(v) + 128 for v in gguf_quants.IQ4_NL.kvalues])


@_compiled
def _iq4_nl_codes(block, part):
    return _nonlinear(simd.nibbles_i8x32(block + 2))


@_compiled
def _k_scale(block, group):
    """6-bit scale of Q4_K and Q5_K: twelve packed bytes at 4."""
    if group < 4:
        return simd.load_u8(block + 4 + group) & 63
    return (simd.load_u8(block + 8 + group) & 15) | ((simd.load_u8(block + group) >> 6) << 4)


@_compiled
def _k_minimum(block, group):
    """6-bit minimum of Q4_K and Q5_K."""
    if group < 4:
        return simd.load_u8(block + 8 + group) & 63
    return (simd.load_u8(block + 8 + group) >> 4) | ((simd.load_u8(block + 4 + group) >> 6) << 4)


@_compiled
def _q4_k_codes(block, part):
    q = simd.load_i8x32(block + 16 + 32 * (part // 2))
    return simd.and_i8x32(simd.shr_i8x32(q, 4 * (part % 2)), simd.splat_i8x32(15))


@_compiled
def _q5_k_codes(block, part):
    q = simd.load_i8x32(block + 48 + 32 * (part // 2))
    low = simd.and_i8x32(simd.shr_i8x32(q, 4 * (part % 2)), simd.splat_i8x32(15))
    high = simd.and_i8x32(simd.shr_i8x32(simd.load_i8x32(block + 16), part), simd.splat_i8x32(1))
    return simd.or_i8x32(low, simd.shl_i8x32(high, 4))


@_compiled
def _q6_k_codes(block, part):
    half, quarter = part // 4, part % 4  # of 128 elements: low nibbles of two runs of 32 bytes, then their high nibbles
    q = simd.load_i8x32(block + 64 * half + 32 * (quarter % 2))
    low = simd.and_i8x32(simd.shr_i8x32(q, 4 * (quarter // 2)), simd.splat_i8x32(15))
    high = simd.shr_i8x32(simd.load_i8x32(block + 128 + 32 * half), 2 * quarter)
    return simd.or_i8x32(low, simd.shl_i8x32(simd.and_i8x32(high, simd.splat_i8x32(3)), 4))


@_compiled
def _q6_k_scale(block, group):
    return simd.load_s8(block + 192 + group)


def _of_32(name: str, n_bytes: int, codes: Callable, **others: Any) -> Format:
    return Format(name=name, elements=32, block_bytes=n_bytes, group=32, codes=codes, d=_half_at(0), **others)


FORMATS = {entry.name: entry for entry in (
    Format(name="Q2_0", elements=64, block_bytes=18, activation=Q8_0, group=32, codes=_q2_0_codes, d=_half_at(0), offset=1),
    _of_32("Q4_0", 18, _q4_0_codes, activation=Q8_0, offset=8),
    _of_32("Q4_1", 20, _q4_1_codes, activation=Q8_1, m=_half_at(2)),
    _of_32("Q5_0", 22, _q5_0_codes, activation=Q8_0, offset=16),
    _of_32("Q5_1", 24, _q5_1_codes, activation=Q8_1, m=_half_at(2)),
    _of_32("Q8_0", 34, _q8_0_codes, activation=Q8_0, offset=128),
    _of_32("IQ4_NL", 18, _iq4_nl_codes, activation=Q8_0, offset=128),
    Format(name="Q4_K", elements=256, block_bytes=144, activation=Q8_K, group=32, codes=_q4_k_codes, d=_half_at(0),
           m=_half_at(2), scale=_k_scale, minimum=_k_minimum),
    Format(name="Q5_K", elements=256, block_bytes=176, activation=Q8_K, group=32, codes=_q5_k_codes, d=_half_at(0),
           m=_half_at(2), scale=_k_scale, minimum=_k_minimum),
    Format(name="Q6_K", elements=256, block_bytes=210, activation=Q8_K, group=16, codes=_q6_k_codes, d=_half_at(208),
           scale=_q6_k_scale, offset=32),
)}

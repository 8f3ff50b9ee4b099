"""The block formats by name: how codes, scales and floats are read out of a block of each.

Layouts: the GGUF block definitions. The formats whose codes are entries of a codebook are in `unpack_codebook`; they are
made when they are asked for, because building a codebook takes milliseconds.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from gguf import quants as gguf_quants

from engine.backend.cpu import bits, simd, unpack_codebook
from engine.backend.cpu.block_format import Q8_0, Q8_0_SUMS_16, Q8_1, Q8_K, Format, compiled, half_at


@compiled
def _fifth_bit(word):
    return simd.and_i8x32(bits.spread_bits(word), simd.splat_i8x32(16))


@compiled
def _crumbs_across(address, part):
    """Two bits of each of 32 bytes: four runs of 32 elements share the same bytes."""
    q = simd.load_i8x32(address + 32 * (part // 4))
    return simd.and_i8x32(simd.shr_i8x32(q, 2 * (part % 4)), simd.splat_i8x32(3))


@compiled
def _q2_0_codes(block, part):
    return bits.crumbs_i8x32(block + 2 + 8 * part)


@compiled
def _q4_0_codes(block, part):
    return bits.nibbles_i8x32(block + 2)


@compiled
def _q4_1_codes(block, part):
    return bits.nibbles_i8x32(block + 4)


@compiled
def _q5_0_codes(block, part):
    return simd.or_i8x32(bits.nibbles_i8x32(block + 6), _fifth_bit(simd.load_i32(block + 2)))


@compiled
def _q5_1_codes(block, part):
    return simd.or_i8x32(bits.nibbles_i8x32(block + 8), _fifth_bit(simd.load_i32(block + 4)))


@compiled
def _q8_0_codes(block, part):
    return simd.add_i8x32(simd.load_i8x32(block + 2), simd.splat_i8x32(128))


_nonlinear = bits.lookup_i8x32([int(v) + 128 for v in gguf_quants.IQ4_NL.kvalues])


@compiled
def _iq4_nl_codes(block, part):
    return _nonlinear(bits.nibbles_i8x32(block + 2))


@compiled
def _k_scale(block, group):
    """6-bit scale of Q4_K and Q5_K: twelve packed bytes at 4."""
    if group < 4:
        return simd.load_u8(block + 4 + group) & 63
    return (simd.load_u8(block + 8 + group) & 15) | ((simd.load_u8(block + group) >> 6) << 4)


@compiled
def _k_minimum(block, group):
    """6-bit minimum of Q4_K and Q5_K."""
    if group < 4:
        return simd.load_u8(block + 8 + group) & 63
    return (simd.load_u8(block + 8 + group) >> 4) | ((simd.load_u8(block + 4 + group) >> 6) << 4)


@compiled
def _q2_k_codes(block, part):
    return _crumbs_across(block + 16, part)


@compiled
def _q2_k_scale(block, group):
    return simd.load_u8(block + group) & 15


@compiled
def _q2_k_minimum(block, group):
    return simd.load_u8(block + group) >> 4


@compiled
def _q3_k_codes(block, part):
    high = simd.and_i8x32(simd.shr_i8x32(simd.load_i8x32(block), part), simd.splat_i8x32(1))
    return simd.or_i8x32(_crumbs_across(block + 32, part), simd.shl_i8x32(high, 2))


@compiled
def _q3_k_scale(block, group):
    """6-bit scale: its low nibble in eight bytes at 96, its two high bits in four bytes at 104."""
    low = (simd.load_u8(block + 96 + group % 8) >> (4 * (group // 8))) & 15
    return (low | (((simd.load_u8(block + 104 + group % 4) >> (2 * (group // 4))) & 3) << 4)) - 32


@compiled
def _q4_k_codes(block, part):
    q = simd.load_i8x32(block + 16 + 32 * (part // 2))
    return simd.and_i8x32(simd.shr_i8x32(q, 4 * (part % 2)), simd.splat_i8x32(15))


@compiled
def _q5_k_codes(block, part):
    q = simd.load_i8x32(block + 48 + 32 * (part // 2))
    low = simd.and_i8x32(simd.shr_i8x32(q, 4 * (part % 2)), simd.splat_i8x32(15))
    high = simd.and_i8x32(simd.shr_i8x32(simd.load_i8x32(block + 16), part), simd.splat_i8x32(1))
    return simd.or_i8x32(low, simd.shl_i8x32(high, 4))


@compiled
def _q6_k_codes(block, part):
    half, quarter = part // 4, part % 4  # of 128 elements: low nibbles of two runs of 32 bytes, then their high nibbles
    q = simd.load_i8x32(block + 64 * half + 32 * (quarter % 2))
    low = simd.and_i8x32(simd.shr_i8x32(q, 4 * (quarter // 2)), simd.splat_i8x32(15))
    high = simd.shr_i8x32(simd.load_i8x32(block + 128 + 32 * half), 2 * quarter)
    return simd.or_i8x32(low, simd.shl_i8x32(simd.and_i8x32(high, simd.splat_i8x32(3)), 4))


@compiled
def _q6_k_scale(block, group):
    return simd.load_s8(block + 192 + group)


@compiled
def _iq4_xs_codes(block, part):
    return _nonlinear(bits.nibbles_i8x32(block + 8 + 16 * part))


@compiled
def _iq4_xs_scale(block, group):
    low = (simd.load_u8(block + 4 + group // 2) >> (4 * (group % 2))) & 15
    return (low | (((bits.load_u16(block + 2) >> (2 * group)) & 3) << 4)) - 32


_e2m1 = bits.lookup_i8x32([int(v) + 12 for v in gguf_quants.MXFP4.kvalues])  # twice the value of a four-bit float


@compiled
def _mxfp4_codes(block, part):
    return _e2m1(bits.nibbles_i8x32(block + 1))


_half_e8m0 = bits.table_f32(gguf_quants.MXFP4.e8m0_to_fp32_half(np.arange(256)))  # half of a power of two


@compiled
def _mxfp4_d(block, run):
    return _half_e8m0(simd.load_u8(block))


@compiled
def _nvfp4_codes(block, part):
    return _e2m1(bits.nibbles_of_8_i8x32(block + 4 + 16 * part))


_half_ue4m3 = bits.table_f32(gguf_quants.NVFP4.ue4m3_to_fp32(np.arange(256)))  # half of an eight-bit float


@compiled
def _nvfp4_d(block, run):
    return _half_ue4m3(simd.load_u8(block + run))


_ones_and_threes, _nines_and_27s, _81s_and_last = (bits.constant_i8x32(factors) for factors in (
    [1] * 16 + [3] * 16, [9] * 16 + [27] * 16, [81] * 16 + [1] * 4 + [3] * 4 + [9] * 4 + [27] * 4))


@compiled
def _tq1_0_codes(block, part):
    """A byte holds five digits in base three as a fraction, the first of them highest; the factor brings one to the front.

    32 bytes hold elements 0..159, 16 bytes the next 80, 4 bytes (of four digits each) the last 16.
    """
    if part < 5:
        power = (0x511B090301 >> (8 * part)) & 255  # bytes 1, 3, 9, 27, 81
        return bits.ternary_i8x32(bits.mul_i8x32(simd.load_i8x32(block), simd.splat_i8x32(power)))
    if part == 5:
        return bits.ternary_i8x32(bits.mul_i8x32(bits.load_twice_i8x32(block + 32), _ones_and_threes(0)))
    if part == 6:
        return bits.ternary_i8x32(bits.mul_i8x32(bits.load_twice_i8x32(block + 32), _nines_and_27s(0)))
    return bits.ternary_i8x32(bits.mul_i8x32(bits.load_16_and_4_i8x32(block + 32), _81s_and_last(0)))


@compiled
def _tq2_0_codes(block, part):
    return _crumbs_across(block, part)


def _of_32(name: str, n_bytes: int, codes: Callable, **others: Any) -> Format:
    return Format(name=name, elements=32, block_bytes=n_bytes, group=32, codes=codes, **{"d": half_at(0)} | others)


def _of_256(name: str, n_bytes: int, codes: Callable, **others: Any) -> Format:
    return Format(name=name, elements=256, block_bytes=n_bytes, activation=Q8_K, codes=codes, **others)


_LINEAR = {entry.name: entry for entry in (
    Format(name="Q2_0", elements=64, block_bytes=18, activation=Q8_0, group=32, codes=_q2_0_codes, d=half_at(0), offset=1),
    _of_32("Q4_0", 18, _q4_0_codes, activation=Q8_0, offset=8),
    _of_32("Q4_1", 20, _q4_1_codes, activation=Q8_1, m=half_at(2)),
    _of_32("Q5_0", 22, _q5_0_codes, activation=Q8_0, offset=16),
    _of_32("Q5_1", 24, _q5_1_codes, activation=Q8_1, m=half_at(2)),
    _of_32("Q8_0", 34, _q8_0_codes, activation=Q8_0, offset=128),
    _of_32("IQ4_NL", 18, _iq4_nl_codes, activation=Q8_0, offset=128),
    _of_32("MXFP4", 17, _mxfp4_codes, activation=Q8_0, d=_mxfp4_d, offset=12),
    Format(name="NVFP4", elements=64, block_bytes=36, activation=Q8_0_SUMS_16, group=16, run=16, codes=_nvfp4_codes,
           d=_nvfp4_d, offset=12),
    _of_256("Q2_K", 84, _q2_k_codes, group=16, d=half_at(80), m=half_at(82), scale=_q2_k_scale, minimum=_q2_k_minimum),
    _of_256("Q3_K", 110, _q3_k_codes, group=16, d=half_at(108), scale=_q3_k_scale, offset=4),
    _of_256("Q4_K", 144, _q4_k_codes, group=32, d=half_at(0), m=half_at(2), scale=_k_scale, minimum=_k_minimum),
    _of_256("Q5_K", 176, _q5_k_codes, group=32, d=half_at(0), m=half_at(2), scale=_k_scale, minimum=_k_minimum),
    _of_256("Q6_K", 210, _q6_k_codes, group=16, d=half_at(208), scale=_q6_k_scale, offset=32),
    _of_256("IQ4_XS", 136, _iq4_xs_codes, group=32, d=half_at(0), scale=_iq4_xs_scale, offset=128),
    _of_256("TQ1_0", 54, _tq1_0_codes, group=32, d=half_at(52), offset=1),
    _of_256("TQ2_0", 66, _tq2_0_codes, group=32, d=half_at(64), offset=1),
)}


class _Formats(Mapping[str, Format]):
    """Formats by name; those with a codebook are made when looked up."""

    def __getitem__(self, name: str) -> Format:
        made = _LINEAR.get(name)
        return made if made is not None else unpack_codebook.FORMATS[name]()

    def __contains__(self, name: object) -> bool:
        return name in _LINEAR or name in unpack_codebook.FORMATS

    def __iter__(self) -> Iterator[str]:
        return iter((*_LINEAR, *unpack_codebook.FORMATS))

    def __len__(self) -> int:
        return len(_LINEAR) + len(unpack_codebook.FORMATS)


FORMATS: Mapping[str, Format] = _Formats()

"""The block formats whose codes are entries of a codebook: IQ1, IQ2 and IQ3.

A weight is an entry's value with a sign of its own (IQ2, IQ3), or that value plus or minus an eighth (IQ1); both become
whole numbers, so the sums stay exact. Codebooks and signs come from the gguf package. A function here makes a format.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf import quants as gguf_quants

from engine.backend.cpu import bits, simd
from engine.backend.cpu.block_format import Q8_K, Format, compiled, half_at


def _grid(name: str) -> np.ndarray:
    """A codebook of the gguf package, f32 [entries, 8 or 4]."""
    holder = getattr(gguf_quants, name)
    holder.init_grid()
    return holder.grid.reshape(holder.grid_shape)


def _iq1_grid() -> np.ndarray:
    """u8 [2048, 8]: eight times a value of -1, 0 or 1, plus 16, to which the delta of 1 or -1 is added."""
    return (8 * _grid("IQ1_S") + 16).astype(np.uint8)


def _sign_masks() -> np.ndarray:
    """u8 [128, 8]: 0xFF where a seven-bit sign code makes an element negative."""
    packed = np.frombuffer(gguf_quants.IQ2_XXS.ksigns, np.uint8)  # the eighth sign makes their number even
    return np.where(packed[:, None] >> np.arange(8) & 1, 0xFF, 0).astype(np.uint8)


def _of_256(name: str, n_bytes: int, **others: Any) -> Format:
    return Format(name=name, elements=256, block_bytes=n_bytes, activation=Q8_K, uniform=True, **others)


def _signed(name: str, n_bytes: int, *, magnitudes: Callable, signs: Callable, **others: Any) -> Format:
    """A format of entries with signs of their own."""
    offset = 64  # more than any magnitude

    @compiled
    def codes(block, part):
        return simd.add_i8x32(bits.negate_i8x32(magnitudes(block, part), signs(block, part)), simd.splat_i8x32(offset))

    return _of_256(name, n_bytes, codes=codes, magnitudes=magnitudes, signs=signs, offset=offset, **others)


@cache
def _odd_nibble(offset: int) -> Callable:
    """A scale 2 s + 1 of a nibble s, low nibbles first."""
    return compiled(lambda block, group: 2 * ((simd.load_u8(block + offset + group // 2) >> (4 * (group % 2))) & 15) + 1)


@cache
def _odd_top(offset: int, stride: int) -> Callable:
    """A scale 2 s + 1 of the highest four bits s of a word."""
    return compiled(lambda block, group: 2 * (simd.load_u8(block + offset + stride * group + 3) >> 4) + 1)


@cache
def _coded_signs(offset: int, stride: int) -> Callable:
    """Signs of four seven-bit codes in the word of each part."""
    masks = bits.codebook_i8x32(_sign_masks())

    @compiled
    def signs(block, part):
        w = simd.load_i32(block + offset + stride * part)
        return masks(w & 127, (w >> 7) & 127, (w >> 14) & 127, (w >> 21) & 127)

    return signs


@cache
def _plain_signs(offset: int) -> Callable:
    """Signs as one bit an element."""
    return compiled(lambda block, part: bits.spread_bits(simd.load_i32(block + offset + 4 * part)))


@cache
def _iq2_xxs() -> Format:
    entries = bits.codebook_i8x32(_grid("IQ2_XXS"))

    @compiled
    def magnitudes(block, part):
        at = block + 2 + 8 * part
        return entries(simd.load_u8(at), simd.load_u8(at + 1), simd.load_u8(at + 2), simd.load_u8(at + 3))

    return _signed("IQ2_XXS", 66, group=32, magnitudes=magnitudes, signs=_coded_signs(6, 8), d=half_at(0, times=0.125),
                   scale=_odd_top(6, 8))


@cache
def _iq2_xs() -> Format:
    entries, masks = bits.codebook_i8x32(_grid("IQ2_XS")), bits.codebook_i8x32(_sign_masks())

    @compiled
    def magnitudes(block, part):
        at = block + 2 + 8 * part
        return entries(bits.load_u16(at) & 511, bits.load_u16(at + 2) & 511, bits.load_u16(at + 4) & 511,
                       bits.load_u16(at + 6) & 511)

    @compiled
    def signs(block, part):
        at = block + 3 + 8 * part
        return masks(simd.load_u8(at) >> 1, simd.load_u8(at + 2) >> 1, simd.load_u8(at + 4) >> 1, simd.load_u8(at + 6) >> 1)

    return _signed("IQ2_XS", 74, group=16, magnitudes=magnitudes, signs=signs, d=half_at(0, times=0.125),
                   scale=_odd_nibble(66))


@cache
def _iq2_s() -> Format:
    entries = bits.codebook_i8x32(_grid("IQ2_S"))

    @compiled
    def magnitudes(block, part):
        at, high = block + 2 + 4 * part, simd.load_u8(block + 66 + part)
        return entries(
            simd.load_u8(at) | ((high & 3) << 8), simd.load_u8(at + 1) | ((high & 12) << 6),
            simd.load_u8(at + 2) | ((high & 48) << 4), simd.load_u8(at + 3) | ((high & 192) << 2))

    return _signed("IQ2_S", 82, group=16, magnitudes=magnitudes, signs=_plain_signs(34), d=half_at(0, times=0.125),
                   scale=_odd_nibble(74))


@cache
def _iq3_xxs() -> Format:
    entries = bits.codebook_i8x32(_grid("IQ3_XXS"))

    @compiled
    def magnitudes(block, part):
        at = block + 2 + 8 * part
        return entries(
            simd.load_u8(at), simd.load_u8(at + 1), simd.load_u8(at + 2), simd.load_u8(at + 3),
            simd.load_u8(at + 4), simd.load_u8(at + 5), simd.load_u8(at + 6), simd.load_u8(at + 7))

    return _signed("IQ3_XXS", 98, group=32, magnitudes=magnitudes, signs=_coded_signs(66, 4), d=half_at(0, times=0.25),
                   scale=_odd_top(66, 4))


@cache
def _iq3_s() -> Format:
    entries = bits.codebook_i8x32(_grid("IQ3_S"))

    @compiled
    def magnitudes(block, part):
        at, high = block + 2 + 8 * part, simd.load_u8(block + 66 + part)
        return entries(
            simd.load_u8(at) | ((high & 1) << 8), simd.load_u8(at + 1) | ((high & 2) << 7),
            simd.load_u8(at + 2) | ((high & 4) << 6), simd.load_u8(at + 3) | ((high & 8) << 5),
            simd.load_u8(at + 4) | ((high & 16) << 4), simd.load_u8(at + 5) | ((high & 32) << 3),
            simd.load_u8(at + 6) | ((high & 64) << 2), simd.load_u8(at + 7) | ((high & 128) << 1))

    return _signed("IQ3_S", 110, group=32, magnitudes=magnitudes, signs=_plain_signs(74), d=half_at(0),
                   scale=_odd_nibble(106))


@cache
def _iq1_s() -> Format:
    entries = bits.codebook_i8x32(_iq1_grid())

    @compiled
    def codes(block, part):
        at, w = block + 2 + 4 * part, bits.load_u16(block + 34 + 2 * part)
        values = entries(
            simd.load_u8(at) | ((w & 7) << 8), simd.load_u8(at + 1) | ((w & 0x38) << 5),
            simd.load_u8(at + 2) | ((w & 0x1C0) << 2), simd.load_u8(at + 3) | ((w & 0xE00) >> 1))
        return simd.add_i8x32(values, simd.splat_i8x32(1 - 2 * (w >> 15)))

    @compiled
    def scale(block, group):
        return 2 * ((bits.load_u16(block + 34 + 2 * group) >> 12) & 7) + 1

    return _of_256("IQ1_S", 50, group=32, codes=codes, d=half_at(0, times=0.125), scale=scale, offset=16)


@cache
def _iq1_m() -> Format:
    entries, negative = bits.codebook_i8x32(_iq1_grid()), bits.bit_masks([4 * (j // 8) + 3 for j in range(32)])

    @compiled
    def codes(block, part):
        at, w = block + 4 * part, bits.load_u16(block + 32 + 2 * part)
        values = entries(
            simd.load_u8(at) | ((w & 7) << 8), simd.load_u8(at + 1) | ((w & 0x70) << 4),
            simd.load_u8(at + 2) | (w & 0x700), simd.load_u8(at + 3) | ((w & 0x7000) >> 4))
        delta = simd.or_i8x32(negative(w), simd.splat_i8x32(1))  # -1 or 1
        return simd.add_i8x32(values, delta)

    @compiled
    def scale(block, group):
        return 2 * ((bits.load_u16(block + 48 + 2 * (group // 4)) >> (3 * (group % 4))) & 7) + 1

    eighth = np.float32(0.125)

    @compiled
    def d(block, run):
        """The f16 stands in the highest nibbles of four words, the first of them its lowest."""
        raw = ((bits.load_u16(block + 48) >> 12) | ((bits.load_u16(block + 50) >> 8) & 0xF0)
               | ((bits.load_u16(block + 52) >> 4) & 0xF00) | (bits.load_u16(block + 54) & 0xF000))
        return bits.f32_of_half(raw) * eighth

    return _of_256("IQ1_M", 56, group=16, codes=codes, d=d, scale=scale, offset=16)


FORMATS: Mapping[str, Callable[[], Format]] = MappingProxyType({
    "IQ1_S": _iq1_s, "IQ1_M": _iq1_m, "IQ2_XXS": _iq2_xxs, "IQ2_XS": _iq2_xs, "IQ2_S": _iq2_s, "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s})

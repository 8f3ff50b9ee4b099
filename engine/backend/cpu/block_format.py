"""What a block format is to the kernels: functions that give codes, integer scales and floats of one block.

A weight is  d[r] * scale[g] * (code - offset) - m * min[g]  with the integer scale and min of its group g and the d of its
run r (the whole block but for NVFP4), or, for the formats with a float minimum, d * code + m. The functions take the
address of a block and are compiled into the kernels, which this must not know.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numba import njit

from engine.backend.cpu import simd

# activation kinds (see quantize.py)
Q8_0, Q8_0_SUMS_16, Q8_1, Q8_K = "q8_0", "q8_0_sums_16", "q8_1", "q8_k"
# of each kind: how many codes share a scale, and how many are added up in one sum
ACTIVATION_SHAPES = MappingProxyType({Q8_0: (32, 32), Q8_0_SUMS_16: (32, 16), Q8_1: (32, 32), Q8_K: (256, 16)})


def compiled(function: Callable) -> Callable:
    """A part of a kernel; inlined, because it passes vectors."""
    return njit(function, error_model="numpy", forceinline=True)


@cache
def half_at(offset: int, *, times: float = 1.0) -> Callable:
    """A function that reads the f16 at an offset of a block; `times` is a power of two, so the product is exact."""
    factor = np.float32(times)
    return compiled(lambda block, run: simd.load_f16(block + offset) * factor)


@compiled
def no_scale(block, group):
    """The scale of formats without integer scales."""
    return 1


@compiled
def no_minimum(block, group):
    """The minimum of formats without integer minimums."""
    return 0


@dataclass(frozen=True, kw_only=True)
class Format:
    """One block format."""

    name: str
    elements: int
    block_bytes: int
    activation: str
    group: int  # elements that share an integer scale
    codes: Callable  # (block, part) -> the 32 codes of elements 32 * part …, as i8x32 of unsigned bytes
    d: Callable  # (block, run) -> f32
    run: int = 0  # elements that share d, if not the whole block
    m: Callable | None = None  # (block, 0) -> f32
    scale: Callable = no_scale  # (block, group) -> int
    minimum: Callable = no_minimum  # (block, group) -> int
    offset: int = 0
    # where a weight is a magnitude with a sign, a row dot takes these and gives the sign to the activation
    magnitudes: Callable | None = None  # (block, part) -> i8x32: |code - offset|
    signs: Callable | None = None  # (block, part) -> i8x32: 0xFF where code < offset, else 0
    uniform: bool = False  # every part is read by the same instructions, so a loop over them costs nothing

    @property
    def step(self) -> int:
        """Elements whose products are added up as integers: those that share d and the activation's scale."""
        return min(ACTIVATION_SHAPES[self.activation][0], self.run or self.elements)

    @property
    def constants(self) -> dict[str, Any]:
        """What a kernel for this format is specialised with."""
        activation_block, sum_group = ACTIVATION_SHAPES[self.activation]
        has_mins = self.minimum is not no_minimum
        return {
            "ELEMENTS": self.elements, "BLOCK_BYTES": self.block_bytes, "GROUP": self.group, "OFFSET": self.offset,
            "RUN": self.run or self.elements, "STEP": self.step, "ACTIVATION_BLOCK": activation_block, "SUM_GROUP": sum_group,
            "HAS_SCALES": self.scale is not no_scale, "HAS_INT_MINS": has_mins,
            "HAS_FLOAT_MIN": self.m is not None and not has_mins,
            "HAS_SIGNS": self.signs is not None, "UNIFORM": self.uniform,
            "magnitudes_of": self.magnitudes or self.codes, "signs_of": self.signs or self.codes,
            "codes_of": self.codes, "d_of": self.d, "m_of": self.m or self.d, "scale_of": self.scale,
            "minimum_of": self.minimum}

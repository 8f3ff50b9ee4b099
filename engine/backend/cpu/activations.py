"""What stands between the two products of a feed-forward, of one expert or dense: a kernel for each kind of activation."""

from collections.abc import Callable
from functools import cache
from types import MappingProxyType

import numpy as np
from numba import njit

from engine.backend.cpu import simd, vecmath
from engine.backend.cpu.kernel import WINDOW_ROWS, slot, specialise, take

_ZERO, _ONE, _CUBIC, _TWO_ROOT_2_PI = np.float32(0), np.float32(1), np.float32(0.044715), np.float32(2 * 0.79788456080286535588)
_LIMIT, _LOW, _STEEP = np.float32(7), np.float32(-7), np.float32(1.702)
_min_f32 = simd.operation(
    simd.f32x16, [simd.f32x16, simd.f32x16], lambda b, x, y: b.select(b.fcmp_ordered("<", x, y), x, y))


@njit(error_model="numpy")
def _swiglu(gate, up):
    """gate * sigmoid(gate) * up."""
    return simd.mul_f32(simd.mul_f32(gate, vecmath.sigmoid16(gate)), up)


@njit(error_model="numpy")
def _geglu(gate, up):
    """GELU by tanh, times up. (1 + tanh(z)) / 2 is sigmoid(2 z)."""
    cubic = simd.mul_f32(simd.splat_f32(_CUBIC), simd.mul_f32(gate, gate))
    z = simd.mul_f32(simd.mul_f32(simd.splat_f32(_TWO_ROOT_2_PI), gate), simd.add_f32(simd.splat_f32(_ONE), cubic))
    return simd.mul_f32(simd.mul_f32(gate, vecmath.sigmoid16(z)), up)


@njit(error_model="numpy")
def _clamped_swiglu(gate, up):
    """gate * sigmoid(1.702 gate) * (up + 1), gate held below 7 and up within -7..7; NaN stays NaN."""
    limit = simd.splat_f32(_LIMIT)
    gate = _min_f32(limit, gate)
    up = simd.max_f32(simd.splat_f32(_LOW), _min_f32(limit, up))
    gate = simd.mul_f32(gate, vecmath.sigmoid16(simd.mul_f32(simd.splat_f32(_STEEP), gate)))
    return simd.mul_f32(gate, simd.add_f32(up, simd.splat_f32(_ONE)))


@njit(error_model="numpy")
def _squared_relu(_, up):
    """max(up, 0) squared, without a gate; NaN stays NaN."""
    positive = simd.max_f32(simd.splat_f32(_ZERO), up)
    return simd.mul_f32(positive, positive)


_KINDS = MappingProxyType({
    "swiglu": _swiglu, "geglu": _geglu, "clamped_swiglu": _clamped_swiglu, "squared_relu": _squared_relu})
GATE, UP, OUT, WIDTH, PER_TOKEN, GATE_BIAS, UP_BIAS, IDS, UP_ROW = range(9)
combine = None  # given by `specialise`
BIASED = False


def activate(arguments, window, counter, worker):
    """out = activation(gate, up), rows [T * per token, width]; those of up are UP_ROW bytes apart.

    Biased: f32 [experts, width] are added to both first; ids i32 [T * per token] tell the expert of a row.
    """
    width = slot(arguments, WIDTH)
    whole = width // 16 * 16
    while True:
        row = take(counter)
        if row >= slot(window, WINDOW_ROWS) * slot(arguments, PER_TOKEN):
            return
        gate, up = slot(arguments, GATE) + 4 * row * width, slot(arguments, UP) + row * slot(arguments, UP_ROW)
        out, expert = slot(arguments, OUT) + 4 * row * width, 0
        if BIASED:
            expert = simd.load_i32(slot(arguments, IDS) + 4 * row)
        gate_bias = slot(arguments, GATE_BIAS) + 4 * expert * width
        up_bias = slot(arguments, UP_BIAS) + 4 * expert * width
        for i in range(0, whole, 16):
            g, u = simd.load_f32x16(gate + 4 * i), simd.load_f32x16(up + 4 * i)
            if BIASED:
                g, u = simd.add_f32(g, simd.load_f32x16(gate_bias + 4 * i)), simd.add_f32(u, simd.load_f32x16(up_bias + 4 * i))
            simd.store_f32x16(out + 4 * i, combine(g, u))
        for i in range(whole, width):
            g, u = simd.splat_f32(simd.load_f32(gate + 4 * i)), simd.splat_f32(simd.load_f32(up + 4 * i))
            if BIASED:
                g = simd.add_f32(g, simd.splat_f32(simd.load_f32(gate_bias + 4 * i)))
                u = simd.add_f32(u, simd.splat_f32(simd.load_f32(up_bias + 4 * i)))
            simd.store_f32(out + 4 * i, simd.first_f32(combine(g, u)))


@cache
def activation_function(kind: str, *, biased: bool = False) -> Callable:
    """The kernel for one kind of activation, plain or with a bias of every expert."""
    return specialise(activate, f"{kind}_biased" if biased else kind, combine=_KINDS[kind], BIASED=biased)

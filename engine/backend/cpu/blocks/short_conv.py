"""Gated short convolution block: projection to three parts, convolution between two products, output."""

import numpy as np

from engine.backend import base
from engine.backend.cpu import short_conv as kernels
from engine.backend.cpu.values import float_array
from engine.errors import BadModel


def short_conv(b, x, spec: base.ShortConv, w: base.Weights):
    """x f32 [T, D] -> f32 [T, D]. State: the last taps - 1 products f32 [taps - 1, D], oldest first."""
    channels = x.width
    if channels % 16:
        raise BadModel(f"{w['input'].name}: {channels} channels of a short convolution: expected a multiple of 16")
    projected = b.linear(x, w["input"], b.rows("short_projected", 3 * channels))
    history = b.state_array(f"{w['input'].name}.conv", (spec.taps - 1, channels))
    out = b.rows("short_out", channels)
    b.program.add(kernels.short_conv, {
        kernels.IN: projected.address, kernels.WEIGHT: b.program.keep(np.ascontiguousarray(float_array(w["conv"]).T)),
        kernels.HISTORY: history.ctypes.data, kernels.OUT: out.address, kernels.CHANNELS: channels, kernels.TAPS: spec.taps})
    b.written(out)
    return b.linear(out, w["output"], b.rows("block_out", channels))

"""Causal convolution with a history that the caller owns. Used by delta nets and by n-gram embeddings."""

import numpy as np

from engine.backend.cpu import causal_conv
from engine.backend.cpu.values import float_array


def convolve(b, x, weight, history: np.ndarray, out, *, dilation: int, add: bool, bias=None):
    """Causal convolution of x f32 [T, channels] by weight [channels, taps] and bias [channels] into out, or added to it."""
    taps = weight.shape[-1]
    by_tap = np.ascontiguousarray(float_array(weight).T)  # f32 [taps, channels]
    b.program.add(causal_conv.causal_conv_function(add=add), {
        causal_conv.IN: x.address, causal_conv.WEIGHT: b.program.keep(by_tap), causal_conv.HISTORY: history.ctypes.data,
        causal_conv.OUT: out.address, causal_conv.CHANNELS: x.width, causal_conv.TAPS: taps,
        causal_conv.DILATION: dilation, causal_conv.BIAS: b.vector(bias) if bias is not None else 0})
    return b.written(out)

"""Depthwise causal convolution over rows that come window by window, and the history that it needs between windows.

Used by delta nets (neighbouring tokens) and by n-gram embeddings (dilated). Knows channels, not what they mean.
"""

from collections.abc import Callable
from functools import cache

from numba import njit

from engine.backend.cpu import simd, vecmath
from engine.backend.cpu.kernel import WINDOW_ROWS, slot, specialise, take

IN, WEIGHT, HISTORY, OUT, CHANNELS, TAPS, DILATION, BIAS = range(8)
CHANNELS_PER_TASK = 64
ADD = False  # given by `specialise`


@njit(error_model="numpy")
def row_at(x, history, t, depth, channels):
    """Row t of the window; a negative one lies in the history of `depth` rows."""
    if t >= 0:
        return x + 4 * t * channels
    return history + 4 * (t + depth) * channels


def causal_conv(arguments, window, counter, worker):
    """out[t, c] = silu(sum over taps k of weight[k, c] * x[t - (taps - 1 - k) * dilation, c] + bias[c]), or that added to out.

    x f32 [T, channels], weight f32 [taps, channels]; history f32 [(taps - 1) * dilation, channels], oldest row first, is
    moved on by T rows. Channels are a multiple of 16. One worker takes all tokens of its channels, so that nobody
    else still reads the history when it moves.
    """
    x, history, channels = slot(arguments, IN), slot(arguments, HISTORY), slot(arguments, CHANNELS)
    taps, dilation, n = slot(arguments, TAPS), slot(arguments, DILATION), slot(window, WINDOW_ROWS)
    depth = (taps - 1) * dilation
    while True:
        first = take(counter) * CHANNELS_PER_TASK
        if first >= channels:
            return
        stop = min(first + CHANNELS_PER_TASK, channels)
        for t in range(n):
            for c in range(first, stop, 16):
                total = simd.splat_f32(simd.f32_of_bits(0))
                for k in range(taps):
                    row = row_at(x, history, t - (taps - 1 - k) * dilation, depth, channels)
                    weight = simd.load_f32x16(slot(arguments, WEIGHT) + 4 * (k * channels + c))
                    total = simd.add_f32(total, simd.mul_f32(weight, simd.load_f32x16(row + 4 * c)))
                if slot(arguments, BIAS) != 0:
                    total = simd.add_f32(total, simd.load_f32x16(slot(arguments, BIAS) + 4 * c))
                total = simd.mul_f32(total, vecmath.sigmoid16(total))
                out = slot(arguments, OUT) + 4 * (t * channels + c)
                if ADD:
                    total = simd.add_f32(simd.load_f32x16(out), total)
                simd.store_f32x16(out, total)
        for r in range(depth):  # ascending: a row is read before it is overwritten
            source = row_at(x, history, n + r - depth, depth, channels)
            for c in range(first, stop, 16):
                simd.store_f32x16(history + 4 * (r * channels + c), simd.load_f32x16(source + 4 * c))


@cache
def causal_conv_function(*, add: bool) -> Callable:
    """The convolution that writes its output, or adds to it."""
    return specialise(causal_conv, "add" if add else "write", ADD=add)

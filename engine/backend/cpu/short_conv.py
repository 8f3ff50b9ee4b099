"""Kernel of the gated short convolution: a product, a causal convolution over a few tokens, another product.

Goes token by token in every window, so neither the output nor the history depends on how the tokens were grouped.
"""

from engine.backend.cpu import simd
from engine.backend.cpu.causal_conv import CHANNELS_PER_TASK
from engine.backend.cpu.kernel import WINDOW_ROWS, slot, take

IN, WEIGHT, HISTORY, OUT, CHANNELS, TAPS = range(6)


def short_conv(arguments, window, counter, worker):
    """z = b * u; out[t, c] = gate[t, c] * sum over taps k of weight[k, c] * z[t - (taps - 1 - k), c].

    Rows of the input are b, gate, u, f32 [T, 3 * channels]; weight f32 [taps, channels]; history f32 [taps - 1, channels]
    holds the last z, oldest first. Channels are a multiple of 16, and one worker takes all tokens of its own.
    """
    x, history, channels, taps = (slot(arguments, IN), slot(arguments, HISTORY), slot(arguments, CHANNELS),
                                  slot(arguments, TAPS))
    depth, n, part = taps - 1, slot(window, WINDOW_ROWS), 4 * channels
    while True:
        first = take(counter) * CHANNELS_PER_TASK
        if first >= channels:
            return
        for c in range(first, min(first + CHANNELS_PER_TASK, channels), 16):
            for t in range(n):
                row = x + 3 * t * part + 4 * c
                newest = simd.mul_f32(simd.load_f32x16(row), simd.load_f32x16(row + 2 * part))
                total = simd.splat_f32(simd.f32_of_bits(0))
                for k in range(depth):
                    z = simd.load_f32x16(history + k * part + 4 * c)
                    total = simd.add_f32(total, simd.mul_f32(simd.load_f32x16(slot(arguments, WEIGHT) + k * part + 4 * c), z))
                    if k > 0:
                        simd.store_f32x16(history + (k - 1) * part + 4 * c, z)
                simd.store_f32x16(history + (depth - 1) * part + 4 * c, newest)
                weight = simd.load_f32x16(slot(arguments, WEIGHT) + depth * part + 4 * c)
                total = simd.add_f32(total, simd.mul_f32(weight, newest))
                simd.store_f32x16(slot(arguments, OUT) + t * part + 4 * c,
                                  simd.mul_f32(simd.load_f32x16(row + part), total))

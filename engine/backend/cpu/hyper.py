"""Kernels of hyper-connections: mixing the residual streams into a block's input, and adding its output to every stream."""

import numpy as np

from engine.backend.cpu import simd, vecmath
from engine.backend.cpu.kernel import WINDOW_ROWS, slot, take

_TWO = np.float32(2)
MIX_GATE, MIX_NORMED, MIX_OUT, MIX_WIDTH, MIX_STREAMS, MIX_INJECT = range(6)
COLUMNS_PER_TASK = 256


def mix_streams(arguments, window, counter, worker):
    """out[t] = mean over streams, in order, of sigmoid(gate) * normed; inject becomes 2 sigmoid(inject / streams).

    gate and normed f32 [T, streams, width], width a multiple of 16; inject f32 [T, streams] in place (address 0: none).
    """
    width, streams = slot(arguments, MIX_WIDTH), slot(arguments, MIX_STREAMS)
    tasks, divisor = (width + COLUMNS_PER_TASK - 1) // COLUMNS_PER_TASK, simd.to_f32(streams)
    while True:
        item = take(counter)
        if item >= slot(window, WINDOW_ROWS) * tasks:
            return
        t, first = item // tasks, item % tasks * COLUMNS_PER_TASK
        for c in range(first, min(first + COLUMNS_PER_TASK, width), 16):
            total = simd.splat_f32(simd.f32_of_bits(0))
            for s in range(streams):
                at = 4 * ((t * streams + s) * width + c)
                gate = vecmath.sigmoid16(simd.load_f32x16(slot(arguments, MIX_GATE) + at))
                total = simd.add_f32(total, simd.mul_f32(gate, simd.load_f32x16(slot(arguments, MIX_NORMED) + at)))
            simd.store_f32x16(slot(arguments, MIX_OUT) + 4 * (t * width + c), simd.div_f32(total, simd.splat_f32(divisor)))
        if first == 0 and slot(arguments, MIX_INJECT) != 0:
            for s in range(streams):
                inject = slot(arguments, MIX_INJECT) + 4 * (t * streams + s)
                simd.store_f32(inject, _TWO * vecmath.sigmoid(simd.load_f32(inject) / divisor))


WRITE_STREAM, WRITE_BLOCK, WRITE_INJECT, WRITE_WIDTH, WRITE_STREAMS = range(5)


def write_streams(arguments, window, counter, worker):
    """stream[t, s] += inject[t, s] * block[t]; width a multiple of 16."""
    width, streams = slot(arguments, WRITE_WIDTH), slot(arguments, WRITE_STREAMS)
    while True:
        item = take(counter)
        if item >= slot(window, WINDOW_ROWS) * streams:
            return
        stream, block = slot(arguments, WRITE_STREAM) + 4 * item * width, slot(arguments, WRITE_BLOCK) + 4 * (
            item // streams) * width
        inject = simd.splat_f32(simd.load_f32(slot(arguments, WRITE_INJECT) + 4 * item))
        for i in range(0, width, 16):
            part = simd.mul_f32(inject, simd.load_f32x16(block + 4 * i))
            simd.store_f32x16(stream + 4 * i, simd.add_f32(simd.load_f32x16(stream + 4 * i), part))

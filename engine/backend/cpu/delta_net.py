"""Kernels of the gated delta rule: decay and write strength, the recurrence, the gated norm of its output.

The recurrence goes token by token in every window, so a state does not depend on how the tokens were grouped.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
from numba import njit

from engine.backend.cpu import rows, simd, vecmath
from engine.backend.cpu.kernel import WINDOW_ROWS, float_slot, slot, specialise, take

_ZERO, _ONE, _TWO = np.float32(0), np.float32(1), np.float32(2)
_UNIT_EPS = np.float32(1e-6)  # inside the root of the l2 norm; fixed by the architecture
_ATANH = tuple(np.float32(1 / n) for n in range(15, 0, -2))  # of z**15 … z, relative error 2e-9 for |z| <= 1/3


@njit(error_model="numpy")
def softplus(x):
    """log(1 + e**x) = max(x, 0) + log1p(e**-|x|), the logarithm as 2 atanh(e / (2 + e))."""
    e = vecmath.exp(-abs(x))
    z = e / (_TWO + e)
    square, series = z * z, _ZERO
    for coefficient in _ATANH:
        series = series * square + coefficient
    return max(x, _ZERO) + _TWO * z * series


GATES_ALPHA, GATES_BETA, GATES_A, GATES_DT, GATES_HEADS = range(5)


def gates(arguments, window, counter, worker):
    """alpha becomes the decay e**(a softplus(alpha + dt)), beta becomes sigmoid(beta); both f32 [T, heads], in place."""
    heads = slot(arguments, GATES_HEADS)
    while True:
        t = take(counter)
        if t >= slot(window, WINDOW_ROWS):
            return
        for h in range(heads):
            alpha, beta = slot(arguments, GATES_ALPHA) + 4 * (t * heads + h), slot(arguments, GATES_BETA) + 4 * (t * heads + h)
            step = softplus(simd.load_f32(alpha) + simd.load_f32(slot(arguments, GATES_DT) + 4 * h))
            simd.store_f32(alpha, vecmath.exp(simd.load_f32(slot(arguments, GATES_A) + 4 * h) * step))
            simd.store_f32(beta, vecmath.sigmoid(simd.load_f32(beta)))


@njit(error_model="numpy")
def unit(source, target, n, factor):
    """target = source / sqrt(sum of squares + eps) * factor."""
    scale = simd.splat_f32(factor / simd.sqrt_f32(vecmath.dot(source, source, n) + _UNIT_EPS))
    for i in range(0, n, 16):
        simd.store_f32x16(target + 4 * i, simd.mul_f32(simd.load_f32x16(source + 4 * i), scale))


@njit(error_model="numpy")
def step_16(state, stride, query, key, value, decay, beta, out, dim):
    """One token on sixteen columns of a head's state."""
    d, zero = simd.splat_f32(decay), simd.splat_f32(_ZERO)
    a = zero
    for i in range(dim):
        s = simd.mul_f32(simd.load_f32x16(state + i * stride), d)
        a = simd.add_f32(a, simd.mul_f32(s, simd.splat_f32(simd.load_f32(key + 4 * i))))
    u, o = simd.mul_f32(simd.splat_f32(beta), simd.sub_f32(simd.load_f32x16(value), a)), zero
    for i in range(dim):
        k, q = simd.splat_f32(simd.load_f32(key + 4 * i)), simd.splat_f32(simd.load_f32(query + 4 * i))
        s = simd.add_f32(simd.mul_f32(simd.load_f32x16(state + i * stride), d), simd.mul_f32(k, u))
        simd.store_f32x16(state + i * stride, s)
        o = simd.add_f32(o, simd.mul_f32(s, q))
    simd.store_f32x16(out, o)


@njit(error_model="numpy")
def step_64(state, stride, query, key, value, decay, beta, out, dim):
    """The same on sixty-four columns: four sums at once hide the latency of the additions."""
    d, b, zero = simd.splat_f32(decay), simd.splat_f32(beta), simd.splat_f32(_ZERO)
    a0, a1, a2, a3 = zero, zero, zero, zero
    for i in range(dim):
        k, s = simd.splat_f32(simd.load_f32(key + 4 * i)), state + i * stride
        a0 = simd.add_f32(a0, simd.mul_f32(simd.mul_f32(simd.load_f32x16(s), d), k))
        a1 = simd.add_f32(a1, simd.mul_f32(simd.mul_f32(simd.load_f32x16(s + 64), d), k))
        a2 = simd.add_f32(a2, simd.mul_f32(simd.mul_f32(simd.load_f32x16(s + 128), d), k))
        a3 = simd.add_f32(a3, simd.mul_f32(simd.mul_f32(simd.load_f32x16(s + 192), d), k))
    u0 = simd.mul_f32(b, simd.sub_f32(simd.load_f32x16(value), a0))
    u1 = simd.mul_f32(b, simd.sub_f32(simd.load_f32x16(value + 64), a1))
    u2 = simd.mul_f32(b, simd.sub_f32(simd.load_f32x16(value + 128), a2))
    u3 = simd.mul_f32(b, simd.sub_f32(simd.load_f32x16(value + 192), a3))
    o0, o1, o2, o3 = zero, zero, zero, zero
    for i in range(dim):
        k, q = simd.splat_f32(simd.load_f32(key + 4 * i)), simd.splat_f32(simd.load_f32(query + 4 * i))
        s = state + i * stride
        s0 = simd.add_f32(simd.mul_f32(simd.load_f32x16(s), d), simd.mul_f32(k, u0))
        s1 = simd.add_f32(simd.mul_f32(simd.load_f32x16(s + 64), d), simd.mul_f32(k, u1))
        s2 = simd.add_f32(simd.mul_f32(simd.load_f32x16(s + 128), d), simd.mul_f32(k, u2))
        s3 = simd.add_f32(simd.mul_f32(simd.load_f32x16(s + 192), d), simd.mul_f32(k, u3))
        simd.store_f32x16(s, s0)
        simd.store_f32x16(s + 64, s1)
        simd.store_f32x16(s + 128, s2)
        simd.store_f32x16(s + 192, s3)
        o0, o1 = simd.add_f32(o0, simd.mul_f32(s0, q)), simd.add_f32(o1, simd.mul_f32(s1, q))
        o2, o3 = simd.add_f32(o2, simd.mul_f32(s2, q)), simd.add_f32(o3, simd.mul_f32(s3, q))
    simd.store_f32x16(out, o0)
    simd.store_f32x16(out + 64, o1)
    simd.store_f32x16(out + 128, o2)
    simd.store_f32x16(out + 192, o3)


(QKV, DECAY, BETA, STATE, OUT, KEY_HEADS, VALUE_HEADS, DIM, SCRATCH, SCRATCH_BYTES,
 NEIGHBOURS) = range(11)


def recurrence(arguments, window, counter, worker):
    """S = decay S; u = beta (v - Sᵀ k); S = S + k uᵀ; out = Sᵀ q: for every value head and token in order.

    qkv f32 [T, key heads + key heads + value heads, dim]; q and k are made unit vectors here, and q divided by
    sqrt(dim). State f32 [value heads, dim, dim], keys first; a worker takes some value columns of one head.
    """
    dim, key_heads, value_heads = slot(arguments, DIM), slot(arguments, KEY_HEADS), slot(arguments, VALUE_HEADS)
    columns = 64 if dim % 64 == 0 else 16
    pieces, width = dim // columns, 4 * (2 * key_heads + value_heads) * dim
    query = slot(arguments, SCRATCH) + worker * slot(arguments, SCRATCH_BYTES)
    key = query + 4 * dim
    factor = _ONE / simd.sqrt_f32(simd.to_f32(dim))
    while True:
        item = take(counter)
        if item >= value_heads * pieces:
            return
        head, first = item // pieces, item % pieces * columns
        key_head = head % key_heads
        if slot(arguments, NEIGHBOURS) != 0:
            key_head = head // (value_heads // key_heads)
        state = slot(arguments, STATE) + 4 * (head * dim * dim + first)
        for t in range(slot(window, WINDOW_ROWS)):
            row, at = slot(arguments, QKV) + t * width, t * value_heads + head
            unit(row + 4 * key_head * dim, query, dim, factor)
            unit(row + 4 * (key_heads + key_head) * dim, key, dim, _ONE)
            value, out = row + 4 * ((2 * key_heads + head) * dim + first), slot(arguments, OUT) + 4 * (at * dim + first)
            decay, beta = simd.load_f32(slot(arguments, DECAY) + 4 * at), simd.load_f32(slot(arguments, BETA) + 4 * at)
            if columns == 64:
                step_64(state, 4 * dim, query, key, value, decay, beta, out, dim)
            else:
                step_16(state, 4 * dim, query, key, value, decay, beta, out, dim)


NORM_ROWS, NORM_GATE, NORM_WEIGHT, NORM_HEADS, NORM_DIM, NORM_EPS = range(6)
SILU = False  # given by `specialise`


def gated_norm(arguments, window, counter, worker):
    """x = rms norm of x * weight * sigmoid(gate) or silu(gate), rows f32 [T * heads, dim], in place."""
    dim = slot(arguments, NORM_DIM)
    while True:
        row = take(counter)
        if row >= slot(window, WINDOW_ROWS) * slot(arguments, NORM_HEADS):
            return
        x, gate = slot(arguments, NORM_ROWS) + 4 * row * dim, slot(arguments, NORM_GATE) + 4 * row * dim
        rows.normalise(x, slot(arguments, NORM_WEIGHT), x, dim, float_slot(arguments, NORM_EPS))
        for i in range(0, dim, 16):
            z = simd.load_f32x16(gate + 4 * i)
            g = vecmath.sigmoid16(z)
            if SILU:
                g = simd.mul_f32(z, g)
            simd.store_f32x16(x + 4 * i, simd.mul_f32(simd.load_f32x16(x + 4 * i), g))


@cache
def gated_norm_function(gate: str) -> Callable:
    """The gated norm for an output gate, "sigmoid" or "silu"."""
    return specialise(gated_norm, gate, SILU=gate == "silu")

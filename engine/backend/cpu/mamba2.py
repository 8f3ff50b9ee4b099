"""Kernel of the Mamba2 recurrence: step sizes, decay, state and output of every head.

Goes token by token in every window, so a state does not depend on how the tokens were grouped.
"""

from numba import njit

from engine.backend.cpu import simd, vecmath
from engine.backend.cpu.delta_net import softplus
from engine.backend.cpu.kernel import WINDOW_ROWS, slot, take


@njit(error_model="numpy")
def step_16(state, stride, x, b, c, decay, size, skip, out, n):
    """One token on sixteen values of a head: state rows = decay * rows + b * (size * x); out = sum of c * rows + skip * x."""
    d, values, y = simd.splat_f32(decay), simd.load_f32x16(x), simd.splat_f32(simd.f32_of_bits(0))
    u = simd.mul_f32(simd.splat_f32(size), values)
    for i in range(n):
        s = simd.add_f32(simd.mul_f32(d, simd.load_f32x16(state + i * stride)),
                         simd.mul_f32(simd.splat_f32(simd.load_f32(b + 4 * i)), u))
        simd.store_f32x16(state + i * stride, s)
        y = simd.add_f32(y, simd.mul_f32(s, simd.splat_f32(simd.load_f32(c + 4 * i))))
    simd.store_f32x16(out, simd.add_f32(y, simd.mul_f32(simd.splat_f32(skip), values)))


@njit(error_model="numpy")
def step_64(state, stride, x, b, c, decay, size, skip, out, n):
    """The same on sixty-four values: four sums at once hide the latency of the additions."""
    d, f, zero = simd.splat_f32(decay), simd.splat_f32(size), simd.splat_f32(simd.f32_of_bits(0))
    x0, x1 = simd.load_f32x16(x), simd.load_f32x16(x + 64)
    x2, x3 = simd.load_f32x16(x + 128), simd.load_f32x16(x + 192)
    u0, u1, u2, u3 = simd.mul_f32(f, x0), simd.mul_f32(f, x1), simd.mul_f32(f, x2), simd.mul_f32(f, x3)
    y0, y1, y2, y3 = zero, zero, zero, zero
    for i in range(n):
        s, k, q = state + i * stride, simd.splat_f32(simd.load_f32(b + 4 * i)), simd.splat_f32(simd.load_f32(c + 4 * i))
        s0 = simd.add_f32(simd.mul_f32(d, simd.load_f32x16(s)), simd.mul_f32(k, u0))
        s1 = simd.add_f32(simd.mul_f32(d, simd.load_f32x16(s + 64)), simd.mul_f32(k, u1))
        s2 = simd.add_f32(simd.mul_f32(d, simd.load_f32x16(s + 128)), simd.mul_f32(k, u2))
        s3 = simd.add_f32(simd.mul_f32(d, simd.load_f32x16(s + 192)), simd.mul_f32(k, u3))
        simd.store_f32x16(s, s0)
        simd.store_f32x16(s + 64, s1)
        simd.store_f32x16(s + 128, s2)
        simd.store_f32x16(s + 192, s3)
        y0, y1 = simd.add_f32(y0, simd.mul_f32(s0, q)), simd.add_f32(y1, simd.mul_f32(s1, q))
        y2, y3 = simd.add_f32(y2, simd.mul_f32(s2, q)), simd.add_f32(y3, simd.mul_f32(s3, q))
    k = simd.splat_f32(skip)
    simd.store_f32x16(out, simd.add_f32(y0, simd.mul_f32(k, x0)))
    simd.store_f32x16(out + 64, simd.add_f32(y1, simd.mul_f32(k, x1)))
    simd.store_f32x16(out + 128, simd.add_f32(y2, simd.mul_f32(k, x2)))
    simd.store_f32x16(out + 192, simd.add_f32(y3, simd.mul_f32(k, x3)))


(XBC, DT, DT_BIAS, A, D, STATE, OUT, HEADS, HEAD_DIM, STATE_SIZE, GROUPS) = range(11)


def recurrence(arguments, window, counter, worker):
    """For every head and token in order: dt = softplus(dt + bias); S = e**(dt a) S + b (dt x)ᵀ; out = Sᵀ c + d x.

    xbc f32 [T, heads * head dim + 2 * groups * state size]: x of every head, then b and c of every group, which neighbouring
    heads share. State f32 [heads, state size, head dim]; a worker takes some values of one head.
    """
    heads, dim, n = slot(arguments, HEADS), slot(arguments, HEAD_DIM), slot(arguments, STATE_SIZE)
    groups, columns = slot(arguments, GROUPS), 64 if dim % 64 == 0 else 16
    pieces, inner = dim // columns, heads * dim
    width = inner + 2 * groups * n
    while True:
        item = take(counter)
        if item >= heads * pieces:
            return
        head, first = item // pieces, item % pieces * columns
        state = slot(arguments, STATE) + 4 * (head * n * dim + first)
        a, bias = (simd.load_f32(slot(arguments, A) + 4 * head), simd.load_f32(slot(arguments, DT_BIAS) + 4 * head))
        skip, group = simd.load_f32(slot(arguments, D) + 4 * head), head // (heads // groups)
        for t in range(slot(window, WINDOW_ROWS)):
            row, at = slot(arguments, XBC) + 4 * t * width, head * dim + first
            size = softplus(simd.load_f32(slot(arguments, DT) + 4 * (t * heads + head)) + bias)
            decay, b = vecmath.exp(size * a), row + 4 * (inner + group * n)
            c, out = b + 4 * groups * n, slot(arguments, OUT) + 4 * (t * inner + at)
            if columns == 64:
                step_64(state, 4 * dim, row + 4 * at, b, c, decay, size, skip, out, n)
            else:
                step_16(state, 4 * dim, row + 4 * at, b, c, decay, size, skip, out, n)

"""Sums and elementwise functions over float32 rows in memory, each in one fixed order.

A sum runs in sixteen lanes, is folded by halves, and takes what is left over (rows that are no multiple of 16) one by one.
"""

from numba import njit

from engine.backend.cpu import simd

_ONE, _NEGATIVE_ZERO = 0x3F800000, 0x80000000 - (1 << 32)  # bit patterns


@njit(error_model="numpy")
def lanes_of_dot(x, y, n):
    """The sixteen partial sums of x[i] * y[i], n a multiple of 16."""
    lanes = simd.splat_f32(simd.f32_of_bits(0))
    for i in range(0, n, 16):
        lanes = simd.add_f32(lanes, simd.mul_f32(simd.load_f32x16(x + 4 * i), simd.load_f32x16(y + 4 * i)))
    return lanes


@njit(error_model="numpy")
def dot_with_16(x, y, step, n):
    """f32x16: the dot products of x with sixteen rows `step` bytes apart, the same bits as `dot`; n a multiple of 16."""
    a = simd.fold_f32_8(lanes_of_dot(x, y, n), lanes_of_dot(x, y + step, n))
    b = simd.fold_f32_8(lanes_of_dot(x, y + 2 * step, n), lanes_of_dot(x, y + 3 * step, n))
    c = simd.fold_f32_8(lanes_of_dot(x, y + 4 * step, n), lanes_of_dot(x, y + 5 * step, n))
    d = simd.fold_f32_8(lanes_of_dot(x, y + 6 * step, n), lanes_of_dot(x, y + 7 * step, n))
    low = simd.fold_f32_2(simd.fold_f32_4(a, b), simd.fold_f32_4(c, d))
    y += 8 * step
    a = simd.fold_f32_8(lanes_of_dot(x, y, n), lanes_of_dot(x, y + step, n))
    b = simd.fold_f32_8(lanes_of_dot(x, y + 2 * step, n), lanes_of_dot(x, y + 3 * step, n))
    c = simd.fold_f32_8(lanes_of_dot(x, y + 4 * step, n), lanes_of_dot(x, y + 5 * step, n))
    d = simd.fold_f32_8(lanes_of_dot(x, y + 6 * step, n), lanes_of_dot(x, y + 7 * step, n))
    return simd.fold_f32_1(low, simd.fold_f32_2(simd.fold_f32_4(a, b), simd.fold_f32_4(c, d)))


@njit(error_model="numpy")
def dot(x, y, n):
    """Sum of x[i] * y[i]; x and y are addresses of n f32."""
    whole = n // 16 * 16
    total = simd.sum_f32x16(lanes_of_dot(x, y, whole))
    for i in range(whole, n):
        total += simd.load_f32(x + 4 * i) * simd.load_f32(y + 4 * i)
    return total


@njit(error_model="numpy")
def sigmoid16(x):
    """1 / (1 + e**-x) of sixteen lanes."""
    one = simd.splat_f32(simd.f32_of_bits(_ONE))
    minus = simd.sub_f32(simd.splat_f32(simd.f32_of_bits(_NEGATIVE_ZERO)), x)
    return simd.div_f32(one, simd.add_f32(one, simd.exp_f32x16(minus)))


@njit(error_model="numpy")
def exp(x):
    """e**x of one f32, the same bits as a lane of `simd.exp_f32x16`."""
    return simd.first_f32(simd.exp_f32x16(simd.splat_f32(x)))


@njit(error_model="numpy")
def sigmoid(x):
    """1 / (1 + e**-x) of one f32."""
    return simd.first_f32(sigmoid16(simd.splat_f32(x)))


@njit(error_model="numpy")
def largest(x, n):
    """Greatest of n f32, n at least 1."""
    first = simd.load_f32(x)
    lanes, whole = simd.splat_f32(first), n // 16 * 16
    for i in range(0, whole, 16):
        lanes = simd.max_f32(simd.load_f32x16(x + 4 * i), lanes)
    top = simd.max_f32x16(lanes)
    for i in range(whole, n):
        v = simd.load_f32(x + 4 * i)
        if v > top:
            top = v
    return top


@njit(error_model="numpy")
def exp_and_sum(x, n, minus):
    """Replace n f32 by e**(x - minus) and return their sum; x has room for n rounded up to 16, which is overwritten."""
    whole = (n + 15) // 16 * 16
    for i in range(n, whole):
        simd.store_f32(x + 4 * i, simd.f32_of_bits(0xFF800000 - (1 << 32)))  # minus infinity: adds nothing
    lanes, shift = simd.splat_f32(simd.f32_of_bits(0)), simd.splat_f32(minus)
    for i in range(0, whole, 16):
        e = simd.exp_f32x16(simd.sub_f32(simd.load_f32x16(x + 4 * i), shift))
        simd.store_f32x16(x + 4 * i, e)
        lanes = simd.add_f32(lanes, e)
    return simd.sum_f32x16(lanes)

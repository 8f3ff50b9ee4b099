"""Kernels on rows of float32: norms, rotary embedding and cache writes, activations, additions, embedding lookup."""

from collections.abc import Callable
from functools import cache

from numba import njit

from engine.backend.cpu import float_matmul, simd, unpack, vecmath
from engine.backend.cpu.kernel import WINDOW_OUT_ROWS, WINDOW_POSITION, WINDOW_ROWS, float_slot, slot, specialise, take

_ONE, _TWO = 0x3F800000, 0x40000000


@njit(error_model="numpy")
def normalise(source, weight, target, n, eps):
    """target = source / sqrt(mean of squares + eps) * weight; without a weight (address 0) only the quotient."""
    mean = vecmath.dot(source, source, n) / simd.to_f32(n)
    scale = simd.f32_of_bits(_ONE) / simd.sqrt_f32(mean + eps)
    for i in range(n):
        v = simd.load_f32(source + 4 * i) * scale
        if weight != 0:
            v = v * simd.load_f32(weight + 4 * i)
        simd.store_f32(target + 4 * i, v)


NORM_IN, NORM_WEIGHT, NORM_OUT, NORM_WIDTH, NORM_EPS, NORM_PARTS = range(6)


def rms_norm(arguments, window, counter, worker):
    """Root-mean-square norm of rows [T * parts, width]; part p of a token uses row p of the weight [parts, width]."""
    width, parts = slot(arguments, NORM_WIDTH), slot(arguments, NORM_PARTS)
    while True:
        row = take(counter)
        if row >= slot(window, WINDOW_ROWS) * parts:
            return
        normalise(slot(arguments, NORM_IN) + 4 * row * width, slot(arguments, NORM_WEIGHT) + 4 * (row % parts) * width,
                  slot(arguments, NORM_OUT) + 4 * row * width, width, float_slot(arguments, NORM_EPS))


(HEADS_IN, HEADS_IN_TOKEN, HEADS_IN_HEAD, HEADS, HEAD_DIM, HEADS_NORM, HEADS_EPS, HEADS_ROPE, HEADS_ROTARY, HEADS_ADJACENT,
 HEADS_OUT, HEADS_OUT_TOKEN, HEADS_OUT_HEAD, HEADS_ABSOLUTE, HEADS_NORMED) = range(15)


def place_heads(arguments, window, counter, worker):
    """Norm and rotate the heads of every token and put them where they belong: in place, or into a cache by position.

    The rotary table is f32 [context, 2, rotary / 2]: cosines, then sines. Strides are in bytes.
    """
    heads, dim, rotary = slot(arguments, HEADS), slot(arguments, HEAD_DIM), slot(arguments, HEADS_ROTARY)
    half = rotary // 2
    while True:
        item = take(counter)
        if item >= slot(window, WINDOW_ROWS) * heads:
            return
        t, head = item // heads, item % heads
        position = slot(window, WINDOW_POSITION) + t
        source = slot(arguments, HEADS_IN) + t * slot(arguments, HEADS_IN_TOKEN) + head * slot(arguments, HEADS_IN_HEAD)
        row = position if slot(arguments, HEADS_ABSOLUTE) != 0 else t
        target = (slot(arguments, HEADS_OUT) + row * slot(arguments, HEADS_OUT_TOKEN)
                  + head * slot(arguments, HEADS_OUT_HEAD))
        if slot(arguments, HEADS_NORMED) != 0:
            normalise(source, slot(arguments, HEADS_NORM), target, dim, float_slot(arguments, HEADS_EPS))
        elif source != target:
            for i in range(dim):
                simd.store_f32(target + 4 * i, simd.load_f32(source + 4 * i))
        table = slot(arguments, HEADS_ROPE)
        if table != 0:
            rotate(target, table + 4 * position * rotary, half, slot(arguments, HEADS_ADJACENT))


@njit(error_model="numpy")
def rotate(x, angles, half, adjacent):
    """Turn `half` pairs of x by the angles whose cosines, then sines, stand at `angles`."""
    for i in range(half):
        first, second = x + 4 * i, x + 4 * (i + half)
        if adjacent != 0:
            first, second = x + 8 * i, x + 8 * i + 4
        cosine, sine = simd.load_f32(angles + 4 * i), simd.load_f32(angles + 4 * (half + i))
        a, b = simd.load_f32(first), simd.load_f32(second)
        simd.store_f32(first, a * cosine - b * sine)
        simd.store_f32(second, b * cosine + a * sine)


UNARY_A, UNARY_B, UNARY_OUT, UNARY_WIDTH, UNARY_PER_TOKEN, UNARY_FACTOR = range(6)


def scaled_silu(arguments, window, counter, worker):
    """out = silu(a * factor), rows [T * per token, width]."""
    width, factor = slot(arguments, UNARY_WIDTH), float_slot(arguments, UNARY_FACTOR)
    while True:
        row = take(counter)
        if row >= slot(window, WINDOW_ROWS) * slot(arguments, UNARY_PER_TOKEN):
            return
        for i in range(width):
            v = simd.load_f32(slot(arguments, UNARY_A) + 4 * (row * width + i)) * factor
            simd.store_f32(slot(arguments, UNARY_OUT) + 4 * (row * width + i), v * vecmath.sigmoid(v))


def add(arguments, window, counter, worker):
    """out = a + factor * b, rows [T, width]; with per token 0, b is one row for all (a bias)."""
    width, shared = slot(arguments, UNARY_WIDTH), slot(arguments, UNARY_PER_TOKEN) == 0
    factor = float_slot(arguments, UNARY_FACTOR)
    while True:
        row = take(counter)
        if row >= slot(window, WINDOW_ROWS):
            return
        a, out = slot(arguments, UNARY_A) + 4 * row * width, slot(arguments, UNARY_OUT) + 4 * row * width
        b = slot(arguments, UNARY_B)
        if not shared:
            b += 4 * row * width
        for i in range(width):
            simd.store_f32(out + 4 * i, simd.load_f32(a + 4 * i) + factor * simd.load_f32(b + 4 * i))


def scale(arguments, window, counter, worker):
    """out = factor * a, rows [T * per token, width]."""
    width, factor = slot(arguments, UNARY_WIDTH), float_slot(arguments, UNARY_FACTOR)
    while True:
        row = take(counter)
        if row >= slot(window, WINDOW_ROWS) * slot(arguments, UNARY_PER_TOKEN):
            return
        for i in range(width):
            v = simd.load_f32(slot(arguments, UNARY_A) + 4 * (row * width + i))
            simd.store_f32(slot(arguments, UNARY_OUT) + 4 * (row * width + i), factor * v)


LOGITS, LOGITS_WIDTH, LOGITS_SCALE, LOGITS_CAP = range(4)
_LOGITS_A_TASK = 4096


def finish_logits(arguments, window, counter, worker):
    """Scale the wanted rows of logits in place and, unless the cap is 0, bend them: cap * tanh(logit / cap)."""
    width, factor, cap = slot(arguments, LOGITS_WIDTH), float_slot(arguments, LOGITS_SCALE), float_slot(arguments, LOGITS_CAP)
    tasks = (width + _LOGITS_A_TASK - 1) // _LOGITS_A_TASK
    one, two = simd.f32_of_bits(_ONE), simd.f32_of_bits(_TWO)
    while True:
        item = take(counter)
        if item >= slot(window, WINDOW_OUT_ROWS) * tasks:
            return
        row, first = slot(arguments, LOGITS) + 4 * (item // tasks) * width, item % tasks * _LOGITS_A_TASK
        for i in range(first, min(first + _LOGITS_A_TASK, width)):
            v = factor * simd.load_f32(row + 4 * i)
            if cap != 0:
                v = cap * (two * vecmath.sigmoid(two * v / cap) - one)
            simd.store_f32(row + 4 * i, v)


(EMBED_TOKENS, EMBED_TABLE, EMBED_ROW_BYTES, EMBED_WIDTH, EMBED_OUT, EMBED_COPIES, EMBED_HISTORY, EMBED_SCRATCH,
 EMBED_SCALE) = range(9)
expand_row = None  # given by `specialise`


def embed(arguments, window, counter, worker):
    """Rows of the embedding table, scaled, for the window's tokens, `copies` times side by side; notes tokens by position."""
    width, copies = slot(arguments, EMBED_WIDTH), slot(arguments, EMBED_COPIES)
    while True:
        t = take(counter)
        if t >= slot(window, WINDOW_ROWS):
            return
        token = simd.load_i32(slot(arguments, EMBED_TOKENS) + 4 * t)
        simd.store_i32(slot(arguments, EMBED_HISTORY) + 4 * (slot(window, WINDOW_POSITION) + t), token)
        out = slot(arguments, EMBED_OUT) + 4 * t * copies * width
        expand_row(slot(arguments, EMBED_TABLE) + token * slot(arguments, EMBED_ROW_BYTES), out, width,
                   slot(arguments, EMBED_SCRATCH) + 1024 * worker)
        for i in range(width):
            simd.store_f32(out + 4 * i, float_slot(arguments, EMBED_SCALE) * simd.load_f32(out + 4 * i))
        for c in range(1, copies):
            for i in range(width):
                simd.store_f32(out + 4 * (c * width + i), simd.load_f32(out + 4 * i))


# constants and functions of the format (block_format.Format.constants), given by `specialise`
ELEMENTS = BLOCK_BYTES = GROUP = OFFSET = RUN = ELEMENT_BYTES = 0
HAS_SCALES = HAS_INT_MINS = HAS_FLOAT_MIN = False
codes_of = d_of = m_of = scale_of = minimum_of = load16 = None


def _expand_blocks(row, out, width, scratch):
    """One quantized row as f32, in the order (d * scale) * code - d_min * min that the format defines."""
    for b in range(width // ELEMENTS):
        block = row + b * BLOCK_BYTES
        for part in range(ELEMENTS // 32):
            simd.store_i8x32(scratch, codes_of(block, part))
            for i in range(32):
                group = (32 * part + i) // GROUP
                step = d_of(block, (32 * part + i) // RUN)
                if HAS_SCALES:
                    step = step * simd.to_f32(scale_of(block, group))
                v = step * simd.to_f32(simd.load_u8(scratch + i) - OFFSET)
                if HAS_INT_MINS:
                    v = v - m_of(block, 0) * simd.to_f32(minimum_of(block, group))
                if HAS_FLOAT_MIN:
                    v = v + m_of(block, 0)
                simd.store_f32(out + 4 * (b * ELEMENTS + 32 * part + i), v)


def _expand_floats(row, out, width, scratch):
    """One row of F32, F16 or BF16 as f32."""
    for first in range(0, width, 16):
        count = min(16, width - first)
        for byte in range(count * ELEMENT_BYTES):  # through the scratch: sixteen elements may reach past the map
            simd.store_i8(scratch + byte, simd.load_u8(row + first * ELEMENT_BYTES + byte))
        simd.store_f32x16(scratch + 64, load16(scratch))
        for i in range(count):
            simd.store_f32(out + 4 * (first + i), simd.load_f32(scratch + 64 + 4 * i))


@cache
def expand_function(name: str) -> Callable:
    """Compiled `expand(row, out, width, scratch)`: one weight row of a format as f32; scratch of 1024 bytes."""
    if name in unpack.FORMATS:
        function = specialise(_expand_blocks, name, **unpack.FORMATS[name].constants)
    else:
        function = specialise(_expand_floats, name, ELEMENT_BYTES=float_matmul.WEIGHT_BYTES[name],
                              load16=float_matmul.LOADERS[name])
    return njit(function, error_model="numpy")


@cache
def embed_function(name: str) -> Callable:
    """The embedding kernel for a table of one format."""
    return specialise(embed, name, expand_row=expand_function(name))

"""Matrix products on quantized blocks: rows of a weight matrix, or of many experts' matrices, with int8 activations.

One kernel a format. It walks a list of groups (one group for a dense matrix, one for each expert that a window uses), cut
into tiles of rows. A group of a few tokens takes a row at a time; a larger one unpacks sixteen rows of 256 elements into a
tile and multiplies it with every token. Both add up the same way: an exact int32 for each step of elements that share
their floats, then f32 step by step in order, so a token's result does not depend on how many tokens are with it.
"""

from collections.abc import Callable
from functools import cache

from numba import njit

from engine.backend.cpu import row_dots, simd, unpack
from engine.backend.cpu.kernel import WINDOW_ROWS, slot, specialise, take

# argument slots
WEIGHTS, EXPERT_BYTES, ROW_BYTES, ROWS, COLUMNS = range(5)
CODES, SCALES, SUMS, WEIGHTED_SUMS = range(5, 9)  # of the activations
OUT, OUT_STRIDE, GROUPS, PAIRS, PER_TOKEN, FIRST_ROW, SCRATCH, SCRATCH_BYTES, FACTORS = range(9, 18)
SLOTS = 18

ROWS_PER_TASK = 32
PREFETCH_BYTES = 4608  # how far ahead of the row in hand
FEW = 4  # fewer tokens than this in a group go row by row
TILE = 256  # elements of a row in a tile
# scratch of a worker, bytes: one row's codes twice over, the tile, its scales, mins and floats, then 64 bytes a token
_ROW_CODES, _TILE_CODES, _TILE_SCALES, _TILE_MINS, _TILE_D, _TILE_M, _SUMS = (
    0, 16 * TILE, 32 * TILE, 32 * TILE + 1024, 32 * TILE + 2048, 32 * TILE + 3072, 32 * TILE + 3584)

# constants and functions of the format (block_format.Format.constants), given by `specialise`; the values here only name them
ELEMENTS = BLOCK_BYTES = GROUP = OFFSET = RUN = STEP = ACTIVATION_BLOCK = SUM_GROUP = 0
HAS_SCALES = HAS_INT_MINS = HAS_FLOAT_MIN = False
codes_of = d_of = m_of = scale_of = minimum_of = None
unpack_tile = dot_row = dot_tile = many_tokens = None


def scratch_bytes(max_rows: int) -> int:
    """What `matmul` needs for each worker when a group has at most `max_rows` tokens."""
    return _SUMS + 64 * (max_rows + 4)


def _unpack_tile(weights, row_bytes, rows, width, scratch):
    """`width` elements of 16 weight rows (the last of `rows` repeated if there are fewer) into the worker's tile."""
    for r in range(16):
        row = weights + min(r, rows - 1) * row_bytes
        for b in range(width // ELEMENTS):
            block = row + b * BLOCK_BYTES
            for part in range(ELEMENTS // 32):
                simd.store_i8x32(scratch + _ROW_CODES + TILE * r + b * ELEMENTS + 32 * part, codes_of(block, part))
            for g in range(ELEMENTS // GROUP):
                at = 4 * r + 64 * (b * (ELEMENTS // GROUP) + g)
                if HAS_SCALES:
                    simd.store_i32(scratch + _TILE_SCALES + at, scale_of(block, g))
                if HAS_INT_MINS:
                    simd.store_i32(scratch + _TILE_MINS + at, minimum_of(block, g))
            for k in range(ELEMENTS // RUN):
                simd.store_f32(scratch + _TILE_D + 64 * (b * (ELEMENTS // RUN) + k) + 4 * r, d_of(block, k))
            simd.store_f32(scratch + _TILE_M + 64 * b + 4 * r, m_of(block, 0))
    for j in range((width + 63) // 64):
        simd.transpose_16x16(scratch + _ROW_CODES + 64 * j, TILE, scratch + _TILE_CODES + 1024 * j)


def _dot_tile(width, first, codes0, codes1, codes2, codes3, scales0, scales1, scales2, scales3,
              sums0, sums1, sums2, sums3, weighted0, weighted1, weighted2, weighted3, totals0, totals1, totals2, totals3,
              scratch):
    """Add a tile's part to the sums of four tokens, sixteen rows at once."""
    t0, t1 = simd.load_f32x16(totals0), simd.load_f32x16(totals1)
    t2, t3 = simd.load_f32x16(totals2), simd.load_f32x16(totals3)
    for s in range(width // STEP):
        e0, e1, e2, e3 = simd.splat_i32(0), simd.splat_i32(0), simd.splat_i32(0), simd.splat_i32(0)
        m0, m1, m2, m3 = simd.splat_i32(0), simd.splat_i32(0), simd.splat_i32(0), simd.splat_i32(0)
        for g in range(STEP // GROUP):
            at = s * STEP + g * GROUP  # in the tile
            b0, b1, b2, b3 = 0, 0, 0, 0
            if OFFSET or HAS_INT_MINS:
                for k in range(GROUP // SUM_GROUP):
                    where = 4 * ((first + at) // SUM_GROUP + k)
                    b0 += simd.load_i32(sums0 + where)
                    b1 += simd.load_i32(sums1 + where)
                    b2 += simd.load_i32(sums2 + where)
                    b3 += simd.load_i32(sums3 + where)
            p0, p1 = simd.splat_i32(-OFFSET * b0), simd.splat_i32(-OFFSET * b1)
            p2, p3 = simd.splat_i32(-OFFSET * b2), simd.splat_i32(-OFFSET * b3)
            for k in range(GROUP // 4):
                w = simd.load_i8x64(scratch + _TILE_CODES + 16 * at + 64 * k)
                a = first + at + 4 * k
                p0 = simd.dot_i8x64(p0, w, simd.splat_bytes(simd.load_i32(codes0 + a)))
                p1 = simd.dot_i8x64(p1, w, simd.splat_bytes(simd.load_i32(codes1 + a)))
                p2 = simd.dot_i8x64(p2, w, simd.splat_bytes(simd.load_i32(codes2 + a)))
                p3 = simd.dot_i8x64(p3, w, simd.splat_bytes(simd.load_i32(codes3 + a)))
            if HAS_SCALES:
                scale = simd.load_i32x16(scratch + _TILE_SCALES + 64 * (at // GROUP))
                p0, p1 = simd.mul_i32(p0, scale), simd.mul_i32(p1, scale)
                p2, p3 = simd.mul_i32(p2, scale), simd.mul_i32(p3, scale)
            e0, e1, e2, e3 = simd.add_i32(e0, p0), simd.add_i32(e1, p1), simd.add_i32(e2, p2), simd.add_i32(e3, p3)
            if HAS_INT_MINS:
                minimum = simd.load_i32x16(scratch + _TILE_MINS + 64 * (at // GROUP))
                m0 = simd.add_i32(m0, simd.mul_i32(minimum, simd.splat_i32(b0)))
                m1 = simd.add_i32(m1, simd.mul_i32(minimum, simd.splat_i32(b1)))
                m2 = simd.add_i32(m2, simd.mul_i32(minimum, simd.splat_i32(b2)))
                m3 = simd.add_i32(m3, simd.mul_i32(minimum, simd.splat_i32(b3)))
        d = simd.load_f32x16(scratch + _TILE_D + 64 * (s * STEP // RUN))
        m = simd.load_f32x16(scratch + _TILE_M + 64 * (s * STEP // ELEMENTS))
        where = 4 * ((first + s * STEP) // ACTIVATION_BLOCK)
        t0 = add_term(t0, d, m, e0, m0, scales0 + where, weighted0 + where)
        t1 = add_term(t1, d, m, e1, m1, scales1 + where, weighted1 + where)
        t2 = add_term(t2, d, m, e2, m2, scales2 + where, weighted2 + where)
        t3 = add_term(t3, d, m, e3, m3, scales3 + where, weighted3 + where)
    simd.store_f32x16(totals0, t0)
    simd.store_f32x16(totals1, t1)
    simd.store_f32x16(totals2, t2)
    simd.store_f32x16(totals3, t3)


def add_term(total, d, m, exact, minus, scale, weighted):
    """total + (d d8) exact, less (m d8) minus or plus m s: the float part of one block, for sixteen rows."""
    d8 = simd.splat_f32(simd.load_f32(scale))
    term = simd.mul_f32(simd.mul_f32(d, d8), simd.f32_of_i32(exact))
    if HAS_INT_MINS:
        term = simd.sub_f32(term, simd.mul_f32(simd.mul_f32(m, d8), simd.f32_of_i32(minus)))
    if HAS_FLOAT_MIN:
        term = simd.add_f32(term, simd.mul_f32(m, simd.splat_f32(simd.load_f32(weighted))))
    return simd.add_f32(total, term)


def _many_tokens(arguments, weights, rows, out, pairs, pair_first, count, row_first, factor, scratch):
    """A tile of up to 16 rows with all tokens of a group."""
    columns, row_bytes, per_token = slot(arguments, COLUMNS), slot(arguments, ROW_BYTES), slot(arguments, PER_TOKEN)
    codes, scales = slot(arguments, CODES), slot(arguments, SCALES)
    sums, weighted = slot(arguments, SUMS), slot(arguments, WEIGHTED_SUMS)
    scale_bytes, sum_bytes = 4 * (columns // ACTIVATION_BLOCK), 4 * (columns // SUM_GROUP)
    for t in range(count + 3):
        simd.store_f32x16(scratch + _SUMS + 64 * t, simd.splat_f32(simd.f32_of_bits(0)))
    for first in range(0, columns, TILE):
        width = min(TILE, columns - first)
        unpack_tile(weights + first // ELEMENTS * BLOCK_BYTES, row_bytes, rows, width, scratch)
        for t in range(0, count, 4):  # past the end the last token again, into sums that nobody reads
            i0 = input_row(pairs, pair_first, t, row_first, per_token)
            i1 = input_row(pairs, pair_first, min(t + 1, count - 1), row_first, per_token)
            i2 = input_row(pairs, pair_first, min(t + 2, count - 1), row_first, per_token)
            i3 = input_row(pairs, pair_first, min(t + 3, count - 1), row_first, per_token)
            total = scratch + _SUMS + 64 * t
            dot_tile(width, first,
                     codes + i0 * columns, codes + i1 * columns, codes + i2 * columns, codes + i3 * columns,
                     scales + i0 * scale_bytes, scales + i1 * scale_bytes,
                     scales + i2 * scale_bytes, scales + i3 * scale_bytes,
                     sums + i0 * sum_bytes, sums + i1 * sum_bytes, sums + i2 * sum_bytes, sums + i3 * sum_bytes,
                     weighted + i0 * scale_bytes, weighted + i1 * scale_bytes,
                     weighted + i2 * scale_bytes, weighted + i3 * scale_bytes,
                     total, total + 64, total + 128, total + 192, scratch)
    stride = slot(arguments, OUT_STRIDE)
    for t in range(count):
        target = out + output_row(pairs, pair_first, t) * stride
        if rows == 16:
            simd.store_f32x16(target, simd.mul_f32(simd.load_f32x16(scratch + _SUMS + 64 * t), simd.splat_f32(factor)))
        else:
            for r in range(rows):
                simd.store_f32(target + 4 * r, simd.load_f32(scratch + _SUMS + 64 * t + 4 * r) * factor)


@njit(error_model="numpy")
def input_row(pairs, pair_first, t, row_first, per_token):
    """Which activation row the t-th entry of a group reads. Without pairs, rows follow each other."""
    if pairs == 0:
        return row_first + t
    return simd.load_i32(pairs + 4 * (pair_first + t)) // per_token


@njit(error_model="numpy")
def factor_of(arguments, expert):
    """What the results of a matrix are multiplied with: one f32 an expert at FACTORS, or 1 if there are none."""
    if slot(arguments, FACTORS) == 0:
        return simd.f32_of_bits(0x3F800000)
    return simd.load_f32(slot(arguments, FACTORS) + 4 * expert)


@njit(error_model="numpy")
def output_row(pairs, pair_first, t):
    """Which output row the t-th entry of a group writes."""
    if pairs == 0:
        return t
    return simd.load_i32(pairs + 4 * (pair_first + t))


def matmul(arguments, window, counter, worker):
    """out[pair] = weights[expert] · activations[pair // per_token], or without groups out[t] = weights · row first + t."""
    rows, row_bytes, columns = slot(arguments, ROWS), slot(arguments, ROW_BYTES), slot(arguments, COLUMNS)
    groups, pairs, out_stride = slot(arguments, GROUPS), slot(arguments, PAIRS), slot(arguments, OUT_STRIDE)
    scratch = slot(arguments, SCRATCH) + worker * slot(arguments, SCRATCH_BYTES)
    tiles = (rows + ROWS_PER_TASK - 1) // ROWS_PER_TASK
    n_groups, row_first = 1, 0
    if groups != 0:
        n_groups = simd.load_i64(groups)
    elif slot(arguments, FIRST_ROW) != 0:  # the window slot of the first row; the number of rows is in the next one
        row_first = slot(window, slot(arguments, FIRST_ROW))
    while True:
        task = take(counter)
        if task >= n_groups * tiles:
            return
        expert, pair_first, count = 0, 0, 0
        if groups != 0:
            entry = groups + 8 + 24 * (task // tiles)
            expert, pair_first, count = simd.load_i64(entry), simd.load_i64(entry + 8), simd.load_i64(entry + 16)
        elif slot(arguments, FIRST_ROW) != 0:
            count = slot(window, slot(arguments, FIRST_ROW) + 1)
        else:
            count = slot(window, WINDOW_ROWS)
        start = task % tiles * ROWS_PER_TASK
        stop = min(start + ROWS_PER_TASK, rows)
        matrix, factor = slot(arguments, WEIGHTS) + expert * slot(arguments, EXPERT_BYTES), factor_of(arguments, expert)
        if count >= FEW:
            for r in range(start, stop, 16):
                many_tokens(arguments, matrix + r * row_bytes, min(16, stop - r), slot(arguments, OUT) + 4 * r,
                            pairs, pair_first, count, row_first, factor, scratch)
            continue
        for t in range(count):
            i = input_row(pairs, pair_first, t, row_first, slot(arguments, PER_TOKEN))
            codes = slot(arguments, CODES) + i * columns
            scales = slot(arguments, SCALES) + i * 4 * (columns // ACTIVATION_BLOCK)
            sums = slot(arguments, SUMS) + i * 4 * (columns // SUM_GROUP)
            weighted = slot(arguments, WEIGHTED_SUMS) + i * 4 * (columns // ACTIVATION_BLOCK)
            out = slot(arguments, OUT) + output_row(pairs, pair_first, t) * out_stride
            for r in range(start, stop):
                # the processor's own prefetching stops at every page of 4 KiB
                for line in range(0, row_bytes, 64):
                    simd.prefetch(matrix + r * row_bytes + PREFETCH_BYTES + line)
                dot = dot_row(matrix + r * row_bytes, columns, codes, scales, sums, weighted)
                simd.store_f32(out + 4 * r, dot * factor)


@cache
def matmul_function(name: str) -> Callable:
    """The kernel function for a block format, to be compiled by `kernel.compile_kernel`."""
    form = unpack.FORMATS[name]
    constants = form.constants

    def compiled(function: Callable, **others: Callable) -> Callable:
        return njit(specialise(function, name, **constants, **others), error_model="numpy")

    tile = compiled(_dot_tile, add_term=compiled(add_term))
    many = compiled(_many_tokens, dot_tile=tile, unpack_tile=compiled(_unpack_tile))
    return specialise(matmul, name, **constants, dot_row=row_dots.row_dot(name), many_tokens=many)

"""Matrix products on quantized blocks: rows of a weight matrix, or of many experts' matrices, with int8 activations.

One kernel a format. It walks a list of groups (one group for a dense matrix, one for each expert that a window uses), cut
into tiles of rows. A group of a few tokens takes a row at a time; a larger one unpacks sixteen rows of 256 elements into a
tile and multiplies it with every token. Both add up the same way: an exact int32 for each activation block, then
f32 block by block in order, so a token's result does not depend on how many tokens are with it.
"""

from collections.abc import Callable
from functools import cache

from numba import njit

from engine.backend.cpu import fused, simd, unpack
from engine.backend.cpu.kernel import WINDOW_ROWS, slot, specialise, take

# argument slots
WEIGHTS, EXPERT_BYTES, ROW_BYTES, ROWS, COLUMNS = range(5)
CODES, SCALES, SUMS, WEIGHTED_SUMS = range(5, 9)  # of the activations
OUT, OUT_STRIDE, GROUPS, PAIRS, PER_TOKEN, FIRST_ROW, SCRATCH, SCRATCH_BYTES = range(9, 17)
SLOTS = 17

ROWS_PER_TASK = 32
PREFETCH_BYTES = 4608  # how far ahead of the row in hand
FEW = 4  # fewer tokens than this in a group go row by row
TILE = 256  # elements of a row in a tile
# scratch of a worker, bytes: one row's codes twice over, the tile, its scales, mins and floats, then 64 bytes a token
_ROW_CODES, _TILE_CODES, _TILE_SCALES, _TILE_MINS, _TILE_D, _TILE_M, _SUMS = (
    0, 16 * TILE, 32 * TILE, 32 * TILE + 1024, 32 * TILE + 2048, 32 * TILE + 2560, 32 * TILE + 3072)

# constants and functions of the format (unpack.Format.constants), given by `specialise`; the values here only name them
ELEMENTS = BLOCK_BYTES = GROUP = OFFSET = ACTIVATION_BLOCK = SUM_GROUP = 0
HAS_SCALES = HAS_INT_MINS = HAS_FLOAT_MIN = False
codes_of = d_of = m_of = scale_of = minimum_of = None
unpack_tile = dot_row = dot_tile = many_tokens = dot_32 = None


def scratch_bytes(max_rows: int) -> int:
    """What `matmul` needs for each worker when a group has at most `max_rows` tokens."""
    return _SUMS + 64 * (max_rows + 4)


def _dot_row_256(weights, columns, codes, scales, sums, weighted):
    """One weight row of 256-element blocks with one token: f32. `codes`, `scales`, … are the token's."""
    total = simd.f32_of_bits(0)
    for b in range(columns // 256):
        block, token, token_sums = weights + b * BLOCK_BYTES, codes + 256 * b, sums + 64 * b
        lanes = simd.zero_i32x8(0)
        minus = 0
        for part in range(8):
            dot = simd.dot_i8x32(simd.zero_i32x8(0), codes_of(block, part), simd.load_i8x32(token + 32 * part))
            s0, s1 = simd.load_i32(token_sums + 8 * part), simd.load_i32(token_sums + 8 * part + 4)
            if GROUP == 32:
                scale = scale_of(block, part)
                lanes = simd.add_i32x8(lanes, simd.mul_i32x8(dot, simd.splat_i32x8(scale)))
                minus += minimum_of(block, part) * (s0 + s1) + OFFSET * scale * (s0 + s1)
            else:
                low, high = scale_of(block, 2 * part), scale_of(block, 2 * part + 1)
                lanes = simd.add_i32x8(lanes, simd.mul_i32x8(dot, simd.halves_i32x8(low, high)))
                minus += OFFSET * (low * s0 + high * s1)
        exact = simd.sum_i32x8(lanes)
        d8 = simd.load_f32(scales + 4 * b)
        if HAS_INT_MINS:
            total = total + ((d_of(block) * d8) * simd.to_f32(exact) - (m_of(block) * d8) * simd.to_f32(minus))
        else:
            total = total + (d_of(block) * d8) * simd.to_f32(exact - minus)
    return total


def _dot_32(block, part, token):
    """Products of 32 weights with 32 activation codes, in eight lanes."""
    return simd.dot_i8x32(simd.zero_i32x8(0), codes_of(block, part), simd.load_i8x32(token))


def _dot_row_32(weights, columns, codes, scales, sums, weighted):
    """One weight row of blocks whose activations have a scale for 32: eight such parts at a time, then the rest."""
    total = simd.f32_of_bits(0)
    parts = ELEMENTS // 32
    for first in range(0, columns // 256 * 256, 256):
        w, a, at = weights + first // ELEMENTS * BLOCK_BYTES, codes + first, first // 8
        b0, b1, b2, b3 = w, w + 1 // parts * BLOCK_BYTES, w + 2 // parts * BLOCK_BYTES, w + 3 // parts * BLOCK_BYTES
        b4, b5 = w + 4 // parts * BLOCK_BYTES, w + 5 // parts * BLOCK_BYTES
        b6, b7 = w + 6 // parts * BLOCK_BYTES, w + 7 // parts * BLOCK_BYTES
        eight = simd.fold_1(
            simd.fold_2(simd.fold_4(dot_32(b0, 0, a), dot_32(b1, 1 % parts, a + 32)),
                        simd.fold_4(dot_32(b2, 2 % parts, a + 64), dot_32(b3, 3 % parts, a + 96))),
            simd.fold_2(simd.fold_4(dot_32(b4, 4 % parts, a + 128), dot_32(b5, 5 % parts, a + 160)),
                        simd.fold_4(dot_32(b6, 6 % parts, a + 192), dot_32(b7, 7 % parts, a + 224))))
        if OFFSET:
            eight = simd.sub_scaled_i32x8(eight, simd.load_i32x8(sums + at), OFFSET)
        d = simd.pack_f32x8(d_of(b0), d_of(b1), d_of(b2), d_of(b3), d_of(b4), d_of(b5), d_of(b6), d_of(b7))
        term = simd.mul_f32x8(simd.mul_f32x8(d, simd.load_f32x8(scales + at)), simd.f32_of_i32x8(eight))
        if HAS_FLOAT_MIN:
            m = simd.pack_f32x8(m_of(b0), m_of(b1), m_of(b2), m_of(b3), m_of(b4), m_of(b5), m_of(b6), m_of(b7))
            term = simd.add_f32x8(term, simd.mul_f32x8(m, simd.load_f32x8(weighted + at)))
        total = simd.sum_in_order(total, term)
    for part in range(columns // 256 * 8, columns // 32):
        block, at = weights + part // parts * BLOCK_BYTES, 4 * part
        exact = simd.sum_i32x8(dot_32(block, part % parts, codes + 32 * part)) - OFFSET * simd.load_i32(sums + at)
        term = (d_of(block) * simd.load_f32(scales + at)) * simd.to_f32(exact)
        if HAS_FLOAT_MIN:
            term = term + m_of(block) * simd.load_f32(weighted + at)
        total = total + term
    return total


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
            simd.store_f32(scratch + _TILE_D + 64 * b + 4 * r, d_of(block))
            simd.store_f32(scratch + _TILE_M + 64 * b + 4 * r, m_of(block))
    for j in range((width + 63) // 64):
        simd.transpose_16x16(scratch + _ROW_CODES + 64 * j, TILE, scratch + _TILE_CODES + 1024 * j)


def _dot_tile(width, first, codes0, codes1, codes2, codes3, scales0, scales1, scales2, scales3,
              sums0, sums1, sums2, sums3, weighted0, weighted1, weighted2, weighted3, totals0, totals1, totals2, totals3,
              scratch):
    """Add a tile's part to the sums of four tokens, sixteen rows at once."""
    t0, t1 = simd.load_f32x16(totals0), simd.load_f32x16(totals1)
    t2, t3 = simd.load_f32x16(totals2), simd.load_f32x16(totals3)
    for s in range(width // ACTIVATION_BLOCK):
        e0, e1, e2, e3 = simd.splat_i32(0), simd.splat_i32(0), simd.splat_i32(0), simd.splat_i32(0)
        m0, m1, m2, m3 = simd.splat_i32(0), simd.splat_i32(0), simd.splat_i32(0), simd.splat_i32(0)
        for g in range(ACTIVATION_BLOCK // GROUP):
            at = s * ACTIVATION_BLOCK + g * GROUP  # in the tile
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
        block = 64 * (s * ACTIVATION_BLOCK // ELEMENTS)
        d, m = simd.load_f32x16(scratch + _TILE_D + block), simd.load_f32x16(scratch + _TILE_M + block)
        where = 4 * (first // ACTIVATION_BLOCK + s)
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


def _many_tokens(arguments, weights, rows, out, pairs, pair_first, count, row_first, scratch):
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
            simd.store_f32x16(target, simd.load_f32x16(scratch + _SUMS + 64 * t))
        else:
            for r in range(rows):
                simd.store_f32(target + 4 * r, simd.load_f32(scratch + _SUMS + 64 * t + 4 * r))


@njit(error_model="numpy")
def input_row(pairs, pair_first, t, row_first, per_token):
    """Which activation row the t-th entry of a group reads. Without pairs, rows follow each other."""
    if pairs == 0:
        return row_first + t
    return simd.load_i32(pairs + 4 * (pair_first + t)) // per_token


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
        matrix = slot(arguments, WEIGHTS) + expert * slot(arguments, EXPERT_BYTES)
        if count >= FEW:
            for r in range(start, stop, 16):
                many_tokens(arguments, matrix + r * row_bytes, min(16, stop - r), slot(arguments, OUT) + 4 * r,
                            pairs, pair_first, count, row_first, scratch)
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
                simd.store_f32(out + 4 * r, dot_row(matrix + r * row_bytes, columns, codes, scales, sums, weighted))


@cache
def matmul_function(name: str) -> Callable:
    """The kernel function for a block format, to be compiled by `kernel.compile_kernel`."""
    form = unpack.FORMATS[name]
    constants = form.constants

    def compiled(function: Callable, **others: Callable) -> Callable:
        return njit(specialise(function, name, **constants, **others), error_model="numpy")

    row = fused.ROW_DOTS.get(name)
    if row is None and form.activation == unpack.Q8_K:
        row = compiled(_dot_row_256)
    elif row is None:
        row = compiled(_dot_row_32, dot_32=compiled(_dot_32))
    tile = compiled(_dot_tile, add_term=compiled(add_term))
    many = compiled(_many_tokens, dot_tile=tile, unpack_tile=compiled(_unpack_tile))
    return specialise(matmul, name, **constants, dot_row=row, many_tokens=many)

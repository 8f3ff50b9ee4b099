"""Kernels of block selection before attention: keys of finished blocks, their scores for a token, and its list of cells.

Block b covers cells b * block …; it can be chosen once all its cells are there. The unfinished last one is always seen.
"""

from numba import njit

from engine.backend.cpu import rows, simd, vecmath
from engine.backend.cpu.kernel import WINDOW_POSITION, WINDOW_ROWS, float_slot, slot, take

(POOL_RAW, POOL_OUT, POOL_BLOCK, POOL_DIM, POOL_NORM, POOL_EPS, POOL_ROPE, POOL_ROTARY, POOL_ADJACENT) = range(9)


def pool_blocks(arguments, window, counter, worker):
    """Key of every block whose last cell is in this window: mean of its raw keys, normed, turned to its first cell.

    raw f32 [context, dim], of earlier windows too; out f32 [context / block, dim].
    """
    block_cells, dim, rotary = slot(arguments, POOL_BLOCK), slot(arguments, POOL_DIM), slot(arguments, POOL_ROTARY)
    position = slot(window, WINDOW_POSITION)
    while True:
        block = position // block_cells + take(counter)
        if block >= (position + slot(window, WINDOW_ROWS)) // block_cells:
            return
        first, out = slot(arguments, POOL_RAW) + 4 * block * block_cells * dim, slot(arguments, POOL_OUT) + 4 * block * dim
        for i in range(dim):
            total = simd.load_f32(first + 4 * i)
            for c in range(1, block_cells):
                total = total + simd.load_f32(first + 4 * (c * dim + i))
            simd.store_f32(out + 4 * i, total / simd.to_f32(block_cells))
        rows.normalise(out, slot(arguments, POOL_NORM), out, dim, float_slot(arguments, POOL_EPS))
        if rotary != 0:
            angles = slot(arguments, POOL_ROPE) + 4 * block * block_cells * rotary
            rows.rotate(out, angles, rotary // 2, slot(arguments, POOL_ADJACENT))


SCORE_QUERY, SCORE_HEADS, SCORE_DIM, SCORE_KEYS, SCORE_BLOCK, SCORE_KEEP, SCORE_OUT, SCORE_OUT_TOKEN = range(8)
BLOCKS_PER_TASK = 256


def score_blocks(arguments, window, counter, worker):
    """out[t, b] = sum over heads of max(q · key of b, 0), for tokens that see more than `keep` finished blocks.

    The published score has a constant factor more, which changes no choice. Tasks are (blocks, token), so that
    neighbouring tasks read the same keys.
    """
    heads, dim, block_cells = slot(arguments, SCORE_HEADS), slot(arguments, SCORE_DIM), slot(arguments, SCORE_BLOCK)
    position, n = slot(window, WINDOW_POSITION), slot(window, WINDOW_ROWS)
    most = (position + n) // block_cells
    if most <= slot(arguments, SCORE_KEEP):
        return
    while True:
        item = take(counter)
        first, t = item // n * BLOCKS_PER_TASK, item % n
        if first >= most:
            return
        seen = (position + t + 1) // block_cells
        if seen <= max(first, slot(arguments, SCORE_KEEP)):
            continue
        out = slot(arguments, SCORE_OUT) + t * slot(arguments, SCORE_OUT_TOKEN)
        queries = slot(arguments, SCORE_QUERY) + 4 * t * heads * dim
        stop, zero = min(first + BLOCKS_PER_TASK, seen), simd.f32_of_bits(0)
        whole = first + (stop - first) // 16 * 16
        for block in range(first, whole, 16):
            keys, lanes = slot(arguments, SCORE_KEYS) + 4 * block * dim, simd.splat_f32(zero)
            for head in range(heads):
                product = vecmath.dot_with_16(queries + 4 * head * dim, keys, 4 * dim, dim)
                lanes = simd.add_f32(lanes, simd.max_f32(product, simd.splat_f32(zero)))
            simd.store_f32x16(out + 4 * block, lanes)
        for block in range(whole, stop):
            keys, total = slot(arguments, SCORE_KEYS) + 4 * block * dim, zero
            for head in range(heads):
                product = vecmath.dot(queries + 4 * head * dim, keys, dim)
                if product > zero:
                    total = total + product
            simd.store_f32(out + 4 * block, total)


HISTOGRAM_BYTES = 4 * 2048


@njit(error_model="numpy")
def threshold(scores, n, keep, histogram):
    """(bits of the keep-th greatest of n scores, how many are greater); scores are not negative, keep is below n.

    Bits of such floats order as integers: three histograms find eleven, ten and ten of them, so the work is linear.
    """
    prefix, greater = 0, 0
    for shift in range(20, -1, -10):
        for i in range(2048):
            simd.store_i32(histogram + 4 * i, 0)
        for i in range(n):
            bits = simd.load_i32(scores + 4 * i) >> shift
            if bits >> 10 == prefix or shift == 20:
                at = histogram + 4 * (bits & (2047 if shift == 20 else 1023))
                simd.store_i32(at, simd.load_i32(at) + 1)
        digit = 2047
        count = simd.load_i32(histogram + 4 * digit)
        while greater + count < keep:
            greater += count
            digit -= 1
            count = simd.load_i32(histogram + 4 * digit)
        prefix = prefix << 10 | digit
    return prefix, greater


SELECT_SCORES, SELECT_SCORES_TOKEN, SELECT_BLOCK, SELECT_KEEP, SELECT_OUT, SELECT_OUT_TOKEN, SELECT_SCRATCH = range(7)


def select_cells(arguments, window, counter, worker):
    """out[t] = number of cells, then the cells in ascending order, i32: the `keep` best blocks and the unfinished one.

    Among equal scores the lower block is taken; with at most `keep` finished blocks every cell is.
    """
    block_cells, keep = slot(arguments, SELECT_BLOCK), slot(arguments, SELECT_KEEP)
    while True:
        t = take(counter)
        if t >= slot(window, WINDOW_ROWS):
            return
        seen = slot(window, WINDOW_POSITION) + t + 1
        blocks = seen // block_cells
        out, n, first = slot(arguments, SELECT_OUT) + t * slot(arguments, SELECT_OUT_TOKEN), 0, 0
        if blocks > keep:
            scores = slot(arguments, SELECT_SCORES) + t * slot(arguments, SELECT_SCORES_TOKEN)
            least, greater = threshold(scores, blocks, keep, slot(arguments, SELECT_SCRATCH) + worker * HISTOGRAM_BYTES)
            equal = keep - greater  # so many of those on the threshold
            for block in range(blocks):
                bits = simd.load_i32(scores + 4 * block)
                if bits > least or (bits == least and equal > 0):
                    if bits == least:
                        equal -= 1
                    for c in range(block_cells):
                        n += 1
                        simd.store_i32(out + 4 * n, block * block_cells + c)
            first = blocks * block_cells
        for cell in range(first, seen):
            n += 1
            simd.store_i32(out + 4 * n, cell)
        simd.store_i32(out, n)

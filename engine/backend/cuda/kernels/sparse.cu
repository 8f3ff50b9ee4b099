// Which cells a token of a window attends to: index heads, keys of finished blocks of cells, scores, and the best blocks'
// cells in ascending order. Block b covers cells b * block …; it can be chosen once all its cells are there, and the
// unfinished last one is always seen. Scores are sums of what relu leaves, so their bits order as integers.
#include "heads.cuh"
#include "ranks.cuh"
#include "window.cuh"

struct IndexArguments {
    const Window* window;
    float* query;      // [T, heads, dim], normed and rotated in place
    const float* key;  // [T, dim], as projected
    const float *query_norm, *key_norm;  // [dim]
    double eps;
    const float* rope;  // [context, 2, rotary / 2], or null
    i64 rotary, adjacent, heads, dim, block;
    float *raw, *pooled;  // [context, dim], [context / block, dim]
};

// One block for all of it.
KERNEL(index_heads, 256, IndexArguments) {
    await_previous_kernel();
    let_next_kernel_start();
    const int lane = lane_id(), warp = threadIdx.x / 32, warps = blockDim.x / 32, rows = (int)a.window->rows, dim = (int)a.dim;
    const i64 position = a.window->position;
    for (int i = warp; i < rows * a.heads; i += warps) {
        const float* angles = a.rope != nullptr ? a.rope + (position + i / a.heads) * a.rotary : nullptr;
        place(a.query + i * dim, a.query + i * dim, dim, a.query_norm, false, (float)a.eps, angles, (int)a.rotary, a.adjacent);
    }
    for (int i = threadIdx.x; i < rows * dim; i += blockDim.x) a.raw[position * dim + i] = a.key[i];
    fence();
    block_barrier();
    // the mean of a block's raw keys, normed, turned to its first cell
    for (i64 b = position / a.block + warp; b < (position + rows) / a.block; b += warps) {
        float* out = a.pooled + b * dim;
        for (int k = lane; k < dim; k += 32) {
            float total = a.raw[b * a.block * dim + k];
            for (int c = 1; c < a.block; ++c) total = add(total, a.raw[(b * a.block + c) * dim + k]);
            out[k] = divide(total, (float)a.block);
        }
        warp_barrier();
        place(out, out, dim, a.key_norm, false, (float)a.eps, a.rope != nullptr ? a.rope + b * a.block * a.rotary : nullptr, (int)a.rotary, a.adjacent);
    }
}

struct ScoreArguments {
    const Window* window;
    const float *query, *pooled;
    i64 heads, dim, block, keep, scores_stride;
    float* scores;  // [T, scores_stride]
};

// block (blocks of cells, token); a warp takes a block of cells at a time
KERNEL(score_blocks, 256, ScoreArguments) {
    await_previous_kernel();
    let_next_kernel_start();
    const i64 t = blockIdx.y;
    if (t >= a.window->rows) return;
    const i64 seen = (a.window->position + t + 1) / a.block;
    if (seen <= a.keep) return;
    const int lane = lane_id(), dim = (int)a.dim;
    for (i64 b = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; b < seen; b += gridDim.x * (blockDim.x / 32)) {
        float total = 0.0f;
        for (int h = 0; h < a.heads; ++h) {
            float dot = 0.0f;
            for (int k = lane; k < dim; k += 32) dot = add(dot, mul(a.query[(t * a.heads + h) * dim + k], a.pooled[b * dim + k]));
            dot = warp_sum(dot);
            if (dot > 0.0f) total = add(total, dot);
        }
        if (lane == 0) a.scores[t * a.scores_stride + b] = total;
    }
}

struct SelectArguments {
    const Window* window;
    const float* scores;
    i64 scores_stride, block, keep, cells_stride;
    i32* cells;  // [T, cells_stride]: their number, then cells
};

static constexpr int THREADS = 512, BINS = 2048;

// rank of this thread among those of the block whose flag is set, and their number in `total`
DEVICE int rank_in_block(bool flag, u32* room, int& total) {
    const u32 set = warp_ballot(flag);
    const int warp = threadIdx.x / 32, lane = lane_id();
    block_barrier();
    if (lane == 0) room[warp] = count_bits(set);
    block_barrier();
    int before = 0;
    total = 0;
    for (int w = 0; w < THREADS / 32; ++w) {
        if (w < warp) before += room[w];
        total += room[w];
    }
    return before + count_bits(set & ((1u << lane) - 1));
}

// block: one token
KERNEL(select_cells, 512, SelectArguments) {
    SHARED u32 histogram[BINS], room[THREADS / 32];
    SHARED u32 found_digit, found_greater;
    await_previous_kernel();
    let_next_kernel_start();
    const i64 t = blockIdx.x;
    if (t >= a.window->rows) return;
    const i64 seen = a.window->position + t + 1, blocks = seen / a.block;
    i32* out = a.cells + t * a.cells_stride;
    i64 n = 0, first = 0;
    if (blocks > a.keep) {
        const float* scores = a.scores + t * a.scores_stride;
        // the bits of the keep-th greatest score, eleven, ten and ten at a time, and how many are greater
        u32 prefix = 0, greater = 0;
        for (int shift = 20; shift >= 0; shift -= 10) {
            for (int i = threadIdx.x; i < BINS; i += THREADS) histogram[i] = 0;
            block_barrier();
            for (i64 b = threadIdx.x; b < blocks; b += THREADS) {
                const u32 bits = float_to_bits(scores[b]) >> shift;
                if (shift == 20 || bits >> 10 == prefix) atomic_add(histogram + (bits & (shift == 20 ? 2047u : 1023u)), 1u);
            }
            block_barrier();
            if (threadIdx.x < 32) {
                i64 more;
                const int digit = digit_of_nth(histogram, BINS, a.keep - greater, more);
                if (threadIdx.x == 0) found_digit = digit, found_greater = greater + (u32)more;
            }
            block_barrier();
            greater = found_greater, prefix = (prefix << 10) | found_digit;
            block_barrier();
        }
        i64 equal_left = a.keep - greater, kept_blocks = 0;
        for (i64 base = 0; base < blocks; base += THREADS) {
            const i64 b = base + threadIdx.x;
            const u32 bits = b < blocks ? float_to_bits(scores[b]) : 0;
            const bool more = b < blocks && bits > prefix, equal = b < blocks && bits == prefix;
            int equals, kept;
            const int place = rank_in_block(equal, room, equals);
            const bool keeps = more || (equal && place < equal_left);
            const int at = rank_in_block(keeps, room, kept);
            if (keeps)
                for (int c = 0; c < a.block; ++c) out[1 + (kept_blocks + at) * a.block + c] = (i32)(b * a.block + c);
            equal_left -= equals, kept_blocks += kept;
        }
        n = kept_blocks * a.block, first = blocks * a.block;
    }
    for (i64 cell = first + threadIdx.x; cell < seen; cell += THREADS) out[1 + n + cell - first] = (i32)cell;
    if (threadIdx.x == 0) out[0] = (i32)(n + seen - first);
}

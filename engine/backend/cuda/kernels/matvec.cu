// Products of up to six matrices, in up to four formats, with the one to eight tokens of a window: norm, rounding, products,
// bias, and where it is asked for the sum with the residual stream or streams, or the greatest logit, in one kernel.
//
// Matrices up to END<i> have FORMAT<i>, and blocks<i> blocks of the grid work on them. Of block formats a warp takes ROWS
// neighbouring rows at a time; the loads of the next ones (DEPTH times 32 chunks of each) are under way meanwhile, those of
// the first before the previous kernel has ended. HELD: see Row. ONCE: no warp has more than one group of rows. TOKENS: of a
// window, at most. COLUMNS: of each matrix. PARTS: pieces of a row of x that are normed each for itself.
#include "dots.cuh"
#include "floats.cuh"
#include "logits.cuh"
#include "result.cuh"
#include "window.cuh"

#ifndef FORMATS
#define FORMATS 1
#define FORMAT0 Q4_K
#define END0 3
#define ROWS 2
#define DEPTH 1
#define HELD 1
#define ONCE 0
#define TOKENS 1
#define COLUMNS 2048
#define PARTS 1
#endif

static constexpr int CHUNKS = (COLUMNS + 63) / 64;

struct MatvecArguments {
    const Window* window;
    const float* x;     // [T, x_stride]
    const float* norm;  // [columns], or null: x is taken as it is
    double eps;
    float* factors;  // [T, PARTS]: of the norms, for who reads x later; or null
    i64 x_stride;
    i64 wanted;  // only the rows of x whose logits the window asks for
    const u8 *weights0, *weights1, *weights2, *weights3, *weights4, *weights5;
    i64 rows0, rows1, rows2, rows3, rows4, rows5;
    float *out0, *out1, *out2, *out3, *out4, *out5;  // [T, rows]
    const float *bias0, *bias1, *bias2, *bias3, *bias4, *bias5;
    i64 blocks0, blocks1, blocks2, blocks3;
    i64 accumulate;  // out += scale * result
    double scale, soft_cap;  // soft_cap 0: none
    const float* inject;     // as `put` says
    i64 streams;
    u64* best;       // [T] greatest result and its row, see `ranked`; or null
};

struct Segment {
    const u8* weights;
    float* out;
    const float* bias;
    i64 rows;
};

DEVICE Segment segment_of(const MatvecArguments& a, int i) {
    switch (i) {
        case 0: return {a.weights0, a.out0, a.bias0, a.rows0};
        case 1: return {a.weights1, a.out1, a.bias1, a.rows1};
        case 2: return {a.weights2, a.out2, a.bias2, a.rows2};
        case 3: return {a.weights3, a.out3, a.bias3, a.rows3};
        case 4: return {a.weights4, a.out4, a.bias4, a.rows4};
        default: return {a.weights5, a.out5, a.bias5, a.rows5};
    }
}

// where a group of rows lies
struct Place {
    Segment in;
    i64 first;
};

template <int FIRST, int END, int SIZE> DEVICE Place place_of(const MatvecArguments& a, i64 group) {
#pragma unroll
    for (int i = FIRST; i < END - 1; ++i) {
        const Segment s = segment_of(a, i);
        const i64 groups = (s.rows + SIZE - 1) / SIZE;
        if (group < groups) return {s, group * SIZE};
        group -= groups;
    }
    return {segment_of(a, END - 1), group * SIZE};
}

template <int FIRST, int END, int SIZE> DEVICE i64 count_groups(const MatvecArguments& a) {
    i64 groups = 0;
#pragma unroll
    for (int i = FIRST; i < END; ++i) groups += (segment_of(a, i).rows + SIZE - 1) / SIZE;
    return groups;
}

DEVICE int count_tokens(const MatvecArguments& a) {
    const i64 asked = a.wanted ? a.window->out_rows : a.window->rows;
    return asked < TOKENS ? (int)asked : TOKENS;
}

// bias, scale and bounds of a logit, its rank, and the result in its place
DEVICE void finish(const MatvecArguments& a, const Place& p, i64 row, int t, float y, bool stores, u64& best) {
    if (p.in.bias != nullptr) y = add(y, p.in.bias[row]);
    if (a.best != nullptr) {
        y = mul(y, (float)a.scale);
        if (a.soft_cap != 0) y = mul(tanhf(divide(y, (float)a.soft_cap)), (float)a.soft_cap);
        const u64 key = ranked(y, row);
        best = key > best ? key : best;
    }
    if (stores) put(p.in.out, p.in.rows, row, t, y, a.accumulate, (float)a.scale, a.inject, (int)a.streams);
}

template <class F> using Loaded = Chunk<F>[ROWS][DEPTH];

template <class F> DEVICE void load_group(Loaded<F>& w, const Place& p, int base) {
    const Matrix<F> matrix = Matrix<F>::at(p.in.weights, p.in.rows, COLUMNS);
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int d = 0; d < DEPTH; ++d)
            w[r][d] = Chunk<F>::load(matrix, (int)p.first + r, p.first + r < p.in.rows ? base + 32 * d + lane_id() : CHUNKS, CHUNKS);
}

// the work of `blocks` blocks on the matrices FIRST … END, of a block format
template <class F, int FIRST, int END> DEVICE void quantized_products(const MatvecArguments& a, i64 block, i64 blocks) {
    const int lane = lane_id(), warp = warp_id();
    constexpr int chunks = CHUNKS;
    const i64 groups = count_groups<FIRST, END, ROWS>(a);
    const i64 warps = blocks * (blockDim.x / 32);
    i64 group = block * (blockDim.x / 32) + warp;
    Place place = place_of<FIRST, END, ROWS>(a, group);
    Loaded<F> w;
    load_group<F>(w, place, 0);
    Row<HELD> norm;
    if (a.norm != nullptr) Row<HELD>::load(norm, a.norm, COLUMNS);

    await_previous_kernel();
    let_next_kernel_start();
    DYNAMIC_SHARED(memory);
    SHARED float room[8 * PARTS];
    const i64 skipped = a.wanted ? a.window->out_first : 0;
    const int n = count_tokens(a);
    for (int t = 0; t < n; ++t) {
        Row<HELD> row;
        Row<HELD>::load(row, a.x + (skipped + t) * a.x_stride, COLUMNS);
        if (a.norm != nullptr) Row<HELD>::template norm<PARTS>(row, norm, COLUMNS, (float)a.eps, room, blockIdx.x == 0 && a.factors != nullptr ? a.factors + t * PARTS : nullptr);
        round_row<F>(row, Rounded<F>::at(memory, chunks, t));
    }
    block_barrier();

    u64 best[TOKENS];
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) best[t] = 0;
    while (group < groups) {
#if !ONCE
        const i64 next_group = group + warps;
        const Place next = place_of<FIRST, END, ROWS>(a, next_group);
        Loaded<F> following;
        if (next_group < groups) load_group<F>(following, next, 0);
#endif
        float total[ROWS][TOKENS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int t = 0; t < TOKENS; ++t) total[r][t] = 0.0f;
        for (int base = 0; base < chunks; base += 32 * DEPTH) {
            if (base > 0) load_group<F>(w, place, base);
#pragma unroll
            for (int d = 0; d < DEPTH; ++d) {
                const int c = base + 32 * d + lane, left = chunks - (base + 32 * d);
                if (left <= 0) break;
#pragma unroll
                for (int t = 0; t < TOKENS; ++t) {
                    if (t >= n) break;
                    const Rounded<F> r8 = Rounded<F>::at(memory, chunks, t);
                    const Inputs in = load_inputs<F>(r8, c);
#pragma unroll
                    for (int r = 0; r < ROWS; ++r)
                        total[r][t] = Terms<F>::sum_in_order(total[r][t], Terms<F>::of(w[r][d], in, r8, c), left);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int t = 0; t < TOKENS; ++t)
                if (t < n && place.first + r < place.in.rows)
                    finish(a, place, place.first + r, t, Terms<F>::whole(total[r][t]), lane == (r * TOKENS + t) % 32, best[t]);
#if ONCE
        break;
#else
        group = next_group, place = next;
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int d = 0; d < DEPTH; ++d) w[r][d] = following[r][d];
#endif
    }
    if (a.best != nullptr && lane == 0)
#pragma unroll
        for (int t = 0; t < TOKENS; ++t)
            if (t < n) atomic_max(a.best + t, best[t]);
}

// the same of plain floats. A block has one token, whose row it keeps in shared memory; rows that are long it takes whole, of
// others a warp takes one
template <class W, int FIRST, int END> DEVICE void float_products(const MatvecArguments& a, i64 block, i64 blocks) {
    constexpr bool LONG = COLUMNS >= 4096;
    const int warp = warp_id(), t = (int)(block % TOKENS), rows_a_block = LONG ? 1 : blockDim.x / 32;
    const int lane = LONG ? threadIdx.x : lane_id(), lanes = LONG ? blockDim.x : 32;
    const i64 rows = count_groups<FIRST, END, 1>(a), step = blocks / TOKENS * rows_a_block;
    i64 row = block / TOKENS * rows_a_block + (LONG ? 0 : warp);
    if (row < rows) {
        const Place p = place_of<FIRST, END, 1>(a, row);
        for (i64 i = 128 * lane; i < (i64)COLUMNS * W::BYTES; i += 128 * lanes) prefetch_l2(p.in.weights + p.first * COLUMNS * W::BYTES + i);
    }
    await_previous_kernel();
    let_next_kernel_start();
    if (t >= count_tokens(a)) return;
    DYNAMIC_SHARED(memory);
    SHARED float room[32];
    float* values = (float*)memory;
    const float* x = a.x + ((a.wanted ? a.window->out_first : 0) + t) * a.x_stride;
    stage_row<W, PARTS>(values, x, a.norm, COLUMNS, (float)a.eps, room, (i64)blockIdx.x == t && a.factors != nullptr ? a.factors + t * PARTS : nullptr);
    block_barrier();
    u64 best = 0;
    for (; row < rows; row += step) {
        const Place p = place_of<FIRST, END, 1>(a, row);
        const float share = lane_share<W>(p.in.weights + p.first * COLUMNS * W::BYTES, values, COLUMNS, lane, lanes);
        finish(a, p, p.first, t, LONG ? block_sum(share, room) : warp_sum(share), lane == 0, best);
    }
    if (a.best != nullptr && lane == 0) atomic_max(a.best + t, best);
}

template <class F, int FIRST, int END> DEVICE void products_of_rows(const MatvecArguments& a, i64 block, i64 blocks) {
    if constexpr (IsFloat<F>::value) float_products<F, FIRST, END>(a, block, blocks);
    else quantized_products<F, FIRST, END>(a, block, blocks);
}

KERNEL(matvec, 256, MatvecArguments) {
    i64 block = blockIdx.x;
    if (FORMATS == 1 || block < a.blocks0) return products_of_rows<FORMAT0, 0, END0>(a, block, a.blocks0);
    block -= a.blocks0;
#if FORMATS > 1
    if (FORMATS == 2 || block < a.blocks1) return products_of_rows<FORMAT1, END0, END1>(a, block, a.blocks1);
    block -= a.blocks1;
#endif
#if FORMATS > 2
    if (FORMATS == 3 || block < a.blocks2) return products_of_rows<FORMAT2, END1, END2>(a, block, a.blocks2);
    block -= a.blocks2;
#endif
#if FORMATS > 3
    products_of_rows<FORMAT3, END2, END3>(a, block, a.blocks3);
#endif
}

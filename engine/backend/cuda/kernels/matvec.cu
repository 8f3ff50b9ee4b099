// Products of up to three matrices with the one to eight tokens of a window: norm, rounding, products, bias, and where it is
// asked for the sum with the residual stream, or the greatest logit, in one kernel. A warp takes ROWS neighbouring rows at a
// time; the loads of the next ones (DEPTH times 32 chunks of each) are under way meanwhile, those of the first before the
// previous kernel has ended. HELD: see Row. ONCE: no warp
// has more than one group of rows. TOKENS: of a window, at most. SEGMENTS: how many
// matrices there are; COLUMNS: of each.
#include "dots.cuh"
#include "logits.cuh"
#include "window.cuh"

#ifndef FORMAT
#define FORMAT Q4_K
#define ROWS 2
#define DEPTH 1
#define HELD 1
#define ONCE 0
#define TOKENS 1
#define SEGMENTS 3
#define COLUMNS 2048
#endif

static constexpr int CHUNKS = (COLUMNS + 63) / 64;

struct MatvecArguments {
    const Window* window;
    const float* x;     // [T, x_stride]
    const float* norm;  // [columns], or null: x is taken as it is
    double eps;
    i64 x_stride;
    i64 wanted;  // only the rows of x whose logits the window asks for
    const u8 *weights0, *weights1, *weights2;
    i64 rows0, rows1, rows2;
    float *out0, *out1, *out2;  // [T, rows]
    const float *bias0, *bias1, *bias2;
    i64 accumulate;  // out += scale * result
    double scale, soft_cap;  // soft_cap 0: none
    u64* best;       // [T] greatest result and its row, see `ranked`; or null
};

// where a group of ROWS rows lies
struct Place {
    const u8* weights;
    float* out;
    const float* bias;
    i64 rows, first;
};

DEVICE Place place_of(const MatvecArguments& a, i64 group) {
    const i64 groups0 = (a.rows0 + ROWS - 1) / ROWS, groups1 = (a.rows1 + ROWS - 1) / ROWS;
    if (SEGMENTS == 1 || group < groups0) return {a.weights0, a.out0, a.bias0, a.rows0, group * ROWS};
    if (group < groups0 + groups1) return {a.weights1, a.out1, a.bias1, a.rows1, (group - groups0) * ROWS};
    return {a.weights2, a.out2, a.bias2, a.rows2, (group - groups0 - groups1) * ROWS};
}

typedef Chunk<FORMAT> Loaded[ROWS][DEPTH];

DEVICE void load_group(Loaded& w, const Place& p, int base) {
    const Matrix<FORMAT> matrix = Matrix<FORMAT>::at(p.weights, p.rows, COLUMNS);
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int d = 0; d < DEPTH; ++d)
            w[r][d] = Chunk<FORMAT>::load(matrix, (int)p.first + r, p.first + r < p.rows ? base + 32 * d + lane_id() : CHUNKS, CHUNKS);
}

DEVICE void products_of_rows(const MatvecArguments& a) {
    typedef FORMAT F;
    const int lane = lane_id(), warp = warp_id();
    constexpr int chunks = CHUNKS;
    const i64 groups = (a.rows0 + ROWS - 1) / ROWS + (a.rows1 + ROWS - 1) / ROWS + (a.rows2 + ROWS - 1) / ROWS;
    const i64 warps = (i64)gridDim.x * (blockDim.x / 32);
    i64 group = (i64)blockIdx.x * (blockDim.x / 32) + warp;
    Place place = place_of(a, group);
    Loaded w;
    load_group(w, place, 0);
    Row<HELD> norm;
    if (a.norm != nullptr) Row<HELD>::load(norm, a.norm, COLUMNS);

    await_previous_kernel();
    let_next_kernel_start();
    DYNAMIC_SHARED(memory);
    SHARED float room[32];
    const i64 asked = a.wanted ? a.window->out_rows : a.window->rows, skipped = a.wanted ? a.window->out_first : 0;
    const int n = asked < TOKENS ? (int)asked : TOKENS;
    for (int t = 0; t < n; ++t) {
        Row<HELD> row;
        Row<HELD>::load(row, a.x + (skipped + t) * a.x_stride, COLUMNS);
        if (a.norm != nullptr) Row<HELD>::norm(row, norm, COLUMNS, (float)a.eps, room);
        round_row<F>(row, Rounded<F>::at(memory, chunks, t));
    }
    block_barrier();

    u64 best[TOKENS];
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) best[t] = 0;
    while (group < groups) {
#if !ONCE
        const i64 next_group = group + warps;
        const Place next = place_of(a, next_group);
        Loaded following;
        if (next_group < groups) load_group(following, next, 0);
#endif
        float total[ROWS][TOKENS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int t = 0; t < TOKENS; ++t) total[r][t] = 0.0f;
        for (int base = 0; base < chunks; base += 32 * DEPTH) {
            if (base > 0) load_group(w, place, base);
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
            for (int t = 0; t < TOKENS; ++t) {
                if (t >= n || place.first + r >= place.rows) continue;
                float y = Terms<F>::whole(total[r][t]);
                if (place.bias != nullptr) y = add(y, place.bias[place.first + r]);
                float* target = place.out + t * place.rows + place.first + r;
                if (a.best != nullptr) {
                    y = mul(y, (float)a.scale);
                    if (a.soft_cap != 0) y = mul(tanhf(divide(y, (float)a.soft_cap)), (float)a.soft_cap);
                    const u64 key = ranked(y, place.first + r);
                    best[t] = key > best[t] ? key : best[t];
                }
                if (lane == (r * TOKENS + t) % 32) *target = a.accumulate ? add(*target, mul((float)a.scale, y)) : y;
            }
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

KERNEL(matvec, 256, MatvecArguments) { products_of_rows(a); }

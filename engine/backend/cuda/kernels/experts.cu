// The routed experts of a window's tokens. `gate_up`: a warp takes ROWS rows of gate and of up of one route and writes their
// activation. `down`: a warp takes an output row, adds the routes up in route order and the sum to the residual stream.
// DEPTH: how many times 32 chunks a warp loads at once; HELD: see Row. An expert
// goes from COLUMNS to INNER and back, hidden rows are STRIDE apart, and a token has USED of them.
#include "activation.cuh"
#include "dots.cuh"
#include "window.cuh"

#ifndef FORMAT
#define FORMAT Q4_K
#define DEPTH 4
#define HELD 3
#define ROWS 2
#define COLUMNS 2048
#define INNER 768
#define USED 8
#endif

static constexpr int CHUNKS = (COLUMNS + 63) / 64, ROUTE_CHUNKS = (INNER + 63) / 64, STRIDE = 64 * ROUTE_CHUNKS;

struct GateUpArguments {
    const Window* window;
    const u8* rounded;  // the tokens' rounded activations
    const i32* ids;     // [T, USED]
    const u8 *gate, *up;
    i64 matrix_rows, gate_first, up_first;  // of the matrices that hold gate and up
    i64 expert_bytes_gate, expert_bytes_up;
    const float *gate_bias, *up_bias;  // [experts, INNER], or null
    i64 activation;
    float* hidden;  // [T, USED, STRIDE]
};

KERNEL(gate_up, 256, GateUpArguments) {
    typedef FORMAT F;
    const int lane = lane_id(), route = blockIdx.y, t = route / USED;
    const i64 row = ROWS * ((i64)blockIdx.x * (blockDim.x / 32) + warp_id());
    await_previous_kernel();
    let_next_kernel_start();
    if (t >= a.window->rows || row >= STRIDE) return;
    const i64 expert = a.ids[route];
    const Matrix<F> gate = Matrix<F>::at(a.gate + expert * a.expert_bytes_gate, a.matrix_rows, COLUMNS);
    const Matrix<F> up = Matrix<F>::at(a.up + expert * a.expert_bytes_up, a.matrix_rows, COLUMNS);
    constexpr int chunks = CHUNKS;
    const Rounded<F> r8 = Rounded<F>::at((u8*)a.rounded, chunks, t);
    float g[ROWS], u[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) g[r] = u[r] = 0.0f;
    for (int base = 0; base < chunks; base += 32 * DEPTH) {
        Chunk<F> wg[ROWS][DEPTH], wu[ROWS][DEPTH];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int d = 0; d < DEPTH; ++d) {
                const int c = row + r < INNER ? base + 32 * d + lane : chunks;
                wg[r][d] = Chunk<F>::load(gate, (int)(a.gate_first + row + r), c, CHUNKS);
                wu[r][d] = Chunk<F>::load(up, (int)(a.up_first + row + r), c, CHUNKS);
            }
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            const int c = base + 32 * d + lane, left = chunks - (base + 32 * d);
            if (left <= 0) break;
            const Inputs in = load_inputs<F>(r8, c);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                g[r] = Terms<F>::sum_in_order(g[r], Terms<F>::of(wg[r][d], in, r8, c), left);
                u[r] = Terms<F>::sum_in_order(u[r], Terms<F>::of(wu[r][d], in, r8, c), left);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        g[r] = Terms<F>::whole(g[r]), u[r] = Terms<F>::whole(u[r]);
        if (lane != r || row + r >= STRIDE) continue;
        if (row + r < INNER && a.gate_bias != nullptr) {
            g[r] = add(g[r], a.gate_bias[expert * INNER + row + r]);
            u[r] = add(u[r], a.up_bias[expert * INNER + row + r]);
        }
        // what rounds up to a chunk is zero
        a.hidden[route * STRIDE + row + r] = row + r < INNER ? activate((int)a.activation, g[r], u[r]) : 0.0f;
    }
}

struct DownArguments {
    const Window* window;
    const float* hidden;  // [T, USED, STRIDE]
    const i32* ids;       // [T, USED]
    const float* route_weights;
    const u8* weights;
    i64 expert_bytes, rows;
    const float *bias, *factors;  // of every expert [experts, rows] and [experts], or null
    float* out;                   // [T, rows]
    i64 accumulate;
    double scale;
};

KERNEL(down, 256, DownArguments) {
    typedef FORMAT F;
    const int lane = lane_id(), warp = warp_id(), t = blockIdx.y;
    constexpr int used = USED;
    const i64 row = (i64)blockIdx.x * (blockDim.x / 32) + warp;
    constexpr int per_route = ROUTE_CHUNKS, chunks = used * per_route;
    const bool has_row = row < a.rows && t < a.window->rows;
    Chunk<F> w[DEPTH];
    // which experts is known since the router ended, and that was before the previous kernel began
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
        const int f = 32 * d + lane;
        const bool inside = has_row && f < chunks;
        const i64 expert = inside ? a.ids[t * used + f / per_route] : 0;
        w[d] = Chunk<F>::load(Matrix<F>::at(a.weights + expert * a.expert_bytes, a.rows, INNER), row, inside ? f % per_route : per_route, per_route);
    }
    await_previous_kernel();
    let_next_kernel_start();
    DYNAMIC_SHARED(memory);
    const Rounded<F> r8 = Rounded<F>::at(memory, chunks, 0);
    if (t < a.window->rows) {
        Row<HELD> hidden;
        Row<HELD>::load(hidden, a.hidden + (i64)t * used * STRIDE, chunks * 64);
        round_row<F>(hidden, r8);
    }
    block_barrier();
    if (!has_row) return;

    // the terms of the row, route by route, in shared memory; then lane j adds those of route j up, in order
    constexpr int PER_CHUNK = Terms<F>::N, LANES = F::STEP == 256 ? 4 : 1;
    constexpr int terms_a_route = per_route * PER_CHUNK / LANES;
    float* terms = (float*)(memory + Rounded<F>::row_bytes(chunks)) + warp * used * terms_a_route;
    for (int base = 0; base < chunks; base += 32 * DEPTH) {
        if (base > 0)
#pragma unroll
            for (int d = 0; d < DEPTH; ++d) {
                const int f = base + 32 * d + lane;
                const i64 expert = f < chunks ? a.ids[t * used + f / per_route] : 0;
                w[d] = Chunk<F>::load(Matrix<F>::at(a.weights + expert * a.expert_bytes, a.rows, INNER), row, f < chunks ? f % per_route : per_route, per_route);
            }
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            if (base + 32 * d >= chunks) break;
            const int f = base + 32 * d + lane;
            const Terms<F> mine = Terms<F>::of(w[d], load_inputs<F>(r8, f), r8, f);
            if (f < chunks && lane % LANES == 0)
#pragma unroll
                for (int s = 0; s < PER_CHUNK; ++s) terms[f / LANES * PER_CHUNK + s] = mine.t[s];
        }
    }
    warp_barrier();
    float part = 0.0f;
    if (lane < used) {
        const i32 expert = a.ids[t * used + lane];
        float route = 0.0f;
        for (int k = 0; k < terms_a_route; ++k) route = add(route, terms[lane * terms_a_route + k]);
        if (a.factors != nullptr) route = mul(route, a.factors[expert]);
        if (a.bias != nullptr) route = add(route, a.bias[expert * a.rows + row]);
        part = mul(a.route_weights[t * used + lane], route);
    }
    float y = shuffle(part, 0);
    for (int j = 1; j < used; ++j) y = add(y, shuffle(part, j));
    if (lane == 0) {
        float* target = a.out + t * a.rows + row;
        *target = a.accumulate ? add(*target, mul((float)a.scale, y)) : y;
    }
}

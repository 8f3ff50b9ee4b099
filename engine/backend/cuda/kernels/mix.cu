// What a block of a model with several residual streams reads: the low-rank product, activated, gives every stream a gate by
// the matrix here, and the mean of the gated streams, normed, is the block's input. A warp takes a column of it, which are
// as many rows of the matrix as there are streams, COLUMNS apart. RANK: elements of a row.
#include "dots.cuh"
#include "floats.cuh"
#include "window.cuh"

#ifndef FORMAT
#define FORMAT Q8_0
#define RANK 320
#define COLUMNS 2560
#define STREAMS 4
#define TOKENS 1
#define HELD 1
#endif

struct MixArguments {
    const Window* window;
    const float* low;       // [T, RANK], as projected
    const u8* weights;      // [STREAMS, COLUMNS, RANK]
    const float *x, *norm;  // the streams [T, STREAMS, COLUMNS], and the weights of their norms [STREAMS, COLUMNS]
    const float* factors;   // [T, STREAMS]: of their norms
    float* inject;          // [T, STREAMS], becomes 2 sigmoid(inject / STREAMS); or null
    float* out;             // [T, COLUMNS]
};

static constexpr int WARPS = 8;
typedef float Gates[TOKENS * STREAMS];

DEVICE float activated(float low) {
    const float v = mul(low, divide(1.0f, (float)STREAMS));
    return mul(v, sigmoid(v));
}

// the gates of a warp's column, of a block format: a lane takes a chunk at a time, then a token and a stream
template <class F> DEVICE void quantized_gates(const MixArguments& a, i64 column, int n, Gates& gates) {
    constexpr int chunks = (RANK + 63) / 64, all = STREAMS * chunks, LANES = F::STEP == 256 ? 4 : 1;
    constexpr int a_row = chunks * Terms<F>::N / LANES;
    const Matrix<F> matrix = Matrix<F>::at(a.weights, STREAMS * COLUMNS, RANK);
    auto load = [&](int f) {
        const bool inside = column < COLUMNS && f < all;
        return Chunk<F>::load(matrix, (int)(f / chunks * COLUMNS + column), inside ? f % chunks : chunks, chunks);
    };
    Chunk<F> w = load(lane_id());
    await_previous_kernel();
    let_next_kernel_start();
    DYNAMIC_SHARED(memory);
    for (int t = 0; t < n; ++t) {
        Row<HELD> row;
        Row<HELD>::load(row, a.low + t * RANK, RANK);
#pragma unroll
        for (int i = 0; i < HELD; ++i)
#pragma unroll
            for (int k = 0; k < 8; ++k) row.v[i][k] = activated(row.v[i][k]);
        round_row<F>(row, Rounded<F>::at(memory, chunks, t));
    }
    block_barrier();
    float* terms = (float*)(memory + TOKENS * Rounded<F>::row_bytes(chunks)) + warp_id() * TOKENS * STREAMS * a_row;
    for (int base = 0; base < all; base += 32) {
        const int f = base + lane_id();
        if (base > 0) w = load(f);
        for (int t = 0; t < n; ++t) {
            const Rounded<F> r8 = Rounded<F>::at(memory, chunks, t);
            const Terms<F> mine = Terms<F>::of(w, load_inputs<F>(r8, f % chunks), r8, f % chunks);
            if (f < all && f % LANES == 0)
#pragma unroll
                for (int s = 0; s < Terms<F>::N; ++s) terms[t * STREAMS * a_row + f / LANES * Terms<F>::N + s] = mine.t[s];
        }
    }
    warp_barrier();
    for (int i = lane_id(); i < n * STREAMS; i += 32) {
        float gate = 0.0f;
        for (int k = 0; k < a_row; ++k) gate = add(gate, terms[i * a_row + k]);
        gates[i] = gate;
    }
}

// the same of plain floats, row by row
template <class W> DEVICE void float_gates(const MixArguments& a, i64 column, int n, Gates& gates) {
    await_previous_kernel();
    let_next_kernel_start();
    DYNAMIC_SHARED(memory);
    float* values = (float*)memory;  // [T, RANK]
    for (int i = threadIdx.x; i < n * RANK; i += blockDim.x) values[i] = W::rounded(activated(a.low[i]));
    block_barrier();
    if (column >= COLUMNS) return;
    for (int i = 0; i < n * STREAMS; ++i) {
        const u8* row = a.weights + (i % STREAMS * COLUMNS + column) * RANK * W::BYTES;
        const float gate = warp_sum(lane_share<W>(row, values + i / STREAMS * RANK, RANK, lane_id(), 32));
        if (lane_id() == 0) gates[i] = gate;
    }
}

KERNEL(mix, 256, MixArguments) {
    SHARED Gates gates[WARPS];
    const int warp = warp_id(), n = a.window->rows < TOKENS ? (int)a.window->rows : TOKENS;
    const i64 column = (i64)blockIdx.x * WARPS + warp;
    if constexpr (IsFloat<FORMAT>::value) float_gates<FORMAT>(a, column, n, gates[warp]);
    else quantized_gates<FORMAT>(a, column, n, gates[warp]);
    warp_barrier();
    if (a.inject != nullptr && blockIdx.x == 0)
        for (int i = threadIdx.x; i < n * STREAMS; i += blockDim.x) a.inject[i] = mul(2.0f, sigmoid(divide(a.inject[i], (float)STREAMS)));
    if (column >= COLUMNS) return;
    for (int i = lane_id(); i < n * STREAMS; i += 32) {
        const i64 stream = i % STREAMS * COLUMNS + column, t = i / STREAMS;
        const float normed = mul(mul(a.x[t * STREAMS * COLUMNS + stream], a.factors[i]), a.norm[stream]);
        gates[warp][i] = mul(sigmoid(gates[warp][i]), normed);
    }
    warp_barrier();
    for (int t = lane_id(); t < n; t += 32) {
        float total = 0.0f;
        for (int s = 0; s < STREAMS; ++s) total = add(total, gates[warp][t * STREAMS + s]);
        a.out[t * COLUMNS + column] = divide(total, (float)STREAMS);
    }
}

// Float weights (F32, F16, BF16): products with a window's tokens, and embeddings. A warp takes a row.
#include "logits.cuh"
#include "rounding.cuh"
#include "window.cuh"

#ifndef WEIGHT
#define WEIGHT F32
#endif

struct F32 {
    static constexpr int BYTES = 4;
    DEVICE float at(const u8* row, i64 i) { return ((const float*)row)[i]; }
    DEVICE float rounded(float x) { return x; }  // an activation, as the format asks for it
};
struct F16 {
    static constexpr int BYTES = 2;
    DEVICE float at(const u8* row, i64 i) { return half_to_float(((const u16*)row)[i]); }
    DEVICE float rounded(float x) { return half_to_float(float_to_half(x)); }
};
struct BF16 {
    static constexpr int BYTES = 2;
    DEVICE float at(const u8* row, i64 i) { return bits_to_float((u32)((const u16*)row)[i] << 16); }
    DEVICE float rounded(float x) {
        const u32 bits = float_to_bits(x);
        if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return x;
        return bits_to_float((bits + 0x7FFFu + ((bits >> 16) & 1)) & 0xFFFF0000u);
    }
};

struct FloatMatvecArguments {
    const Window* window;
    const float* x;     // [T, x_stride]
    const float* norm;  // [columns], or null
    double eps;
    i64 columns, x_stride, wanted;
    const u8* weights;  // [rows, columns]
    i64 rows;
    const float* bias;
    float* out;  // [T, rows]
    i64 accumulate;
    double scale, soft_cap;
    u64* best;  // as `ranked` says
};

// Block (rows, token). The token's row is kept in shared memory.
KERNEL(float_matvec, 256, FloatMatvecArguments) {
    const int lane = lane_id(), t = blockIdx.y, columns = (int)a.columns;
    const i64 warps = (i64)gridDim.x * (blockDim.x / 32);
    await_previous_kernel();
    let_next_kernel_start();
    DYNAMIC_SHARED(memory);
    SHARED float room[32];
    float* values = (float*)memory;
    if (t >= (a.wanted ? a.window->out_rows : a.window->rows)) return;
    const float* x = a.x + ((a.wanted ? a.window->out_first : 0) + t) * a.x_stride;
    const float factor = a.norm != nullptr ? norm_factor(x, columns, (float)a.eps, room) : 1.0f;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) values[i] = WEIGHT::rounded(a.norm != nullptr ? mul(mul(x[i], factor), a.norm[i]) : x[i]);
    block_barrier();
    u64 best = 0;
    for (i64 row = (i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; row < a.rows; row += warps) {
        const u8* w = a.weights + row * columns * WEIGHT::BYTES;
        float sum = 0.0f;
#pragma unroll 8
        for (int i = lane; i < columns; i += 32) sum = add(sum, mul(WEIGHT::at(w, i), values[i]));
        sum = warp_sum(sum);
        if (a.bias != nullptr) sum = add(sum, a.bias[row]);
        if (a.best != nullptr) {
            sum = mul(sum, (float)a.scale);
            if (a.soft_cap != 0) sum = mul(tanhf(divide(sum, (float)a.soft_cap)), (float)a.soft_cap);
            const u64 key = ranked(sum, row);
            best = key > best ? key : best;
        }
        float* target = a.out + t * a.rows + row;
        if (lane == 0) *target = a.accumulate ? add(*target, mul((float)a.scale, sum)) : sum;
    }
    if (a.best != nullptr && lane == 0) atomic_max(a.best + t, best);
}

struct FloatEmbedArguments {
    const Window* window;
    const i32* tokens;  // [T, per_token] rows of the table, or null: the tokens of the window block
    const u8* table;    // [vocabulary, columns]
    i64 columns, copies, per_token;
    double scale;
    i32* history;  // [context], or null
    float* out;    // [T, per_token, copies * columns]
};

KERNEL(float_embed, 256, FloatEmbedArguments) {
    const int t = blockIdx.x;
    await_previous_kernel();
    let_next_kernel_start();
    if (t >= a.window->rows * a.per_token) return;
    const i32 token = a.tokens != nullptr ? a.tokens[t] : a.window->tokens[t];
    if (threadIdx.x == 0 && a.history != nullptr) a.history[a.window->position + t] = token;
    for (int i = threadIdx.x; i < a.columns; i += blockDim.x)
        for (int copy = 0; copy < a.copies; ++copy)
            a.out[(t * a.copies + copy) * a.columns + i] = mul(WEIGHT::at(a.table + token * a.columns * WEIGHT::BYTES, i), (float)a.scale);
}

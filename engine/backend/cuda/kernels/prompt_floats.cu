// Products of plain float matrices with the tokens of a prompt: 64 x 64 results a block of threads, 4 x 4 a thread, in f32.
// Activations are rounded to the weights' type first, as the CPU backend does.
#include "platform.cuh"
#include "window.cuh"

#ifndef WEIGHT
#define WEIGHT F16
#endif

enum Type { F32, F16, BF16 };
static constexpr int SIDE = 64, DEPTH = 16;

struct PromptFloatsArguments {
    const Window* window;
    const i32* tiles;  // [capacity, 4]: expert, first pair, pairs, 0; null: one matrix, tokens as they follow each other
    const i32* tile_count;
    const i32* pairs;
    const float* x;  // [T * per_token of the input, columns]
    i64 columns, input_of;  // pairs that share an input row
    const u8* weights;      // rows `first` … of each [matrix_rows, columns]
    i64 matrix_rows, first, rows;
    float* out;  // [T * per_token, rows]
    const float *bias, *factors;  // [rows] and [experts], or null
    i64 accumulate;
    double scale;
};

DEVICE float as_bf16(float x) {
    const u32 bits = float_to_bits(x);
    return (bits & 0x7FFFFFFFu) > 0x7F800000u ? x : bits_to_float((bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF0000u);
}
template <Type W> DEVICE float as_weight(float x) { return W == F32 ? x : W == F16 ? half_to_float(float_to_half(x)) : as_bf16(x); }
template <Type W> DEVICE float weight_at(const u8* weights, i64 i) {
    if (W == F32) return ((const float*)weights)[i];
    const u16 half = ((const u16*)weights)[i];
    return W == F16 ? half_to_float(half) : bits_to_float((u32)half << 16);
}

KERNEL(prompt_floats, 256, PromptFloatsArguments) {
    constexpr Type W = WEIGHT;
    SHARED float w[DEPTH][SIDE + 4], x[DEPTH][SIDE + 4];
    SHARED i32 outputs[SIDE];
    await_previous_kernel();
    let_next_kernel_start();
    int expert = 0, first_pair = SIDE * blockIdx.y, count = (int)a.window->rows - first_pair;
    if (a.tiles != nullptr) {
        if ((i32)blockIdx.y >= *a.tile_count) return;
        expert = a.tiles[4 * blockIdx.y], first_pair = a.tiles[4 * blockIdx.y + 1], count = a.tiles[4 * blockIdx.y + 2];
    }
    if (count <= 0) return;
    if (count > SIDE) count = SIDE;
    if (threadIdx.x < SIDE) {
        const int at = first_pair + ((int)threadIdx.x < count ? (int)threadIdx.x : count - 1);
        outputs[threadIdx.x] = a.pairs != nullptr ? a.pairs[at] : at;
    }
    block_barrier();
    const i64 first_row = (i64)SIDE * blockIdx.x, element = threadIdx.x % DEPTH;
    const int r = 4 * (threadIdx.x % 16), t = 4 * (threadIdx.x / 16);
    float sums[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] = 0.0f;
    for (i64 k = 0; k < a.columns; k += DEPTH) {
#pragma unroll
        for (int i = 0; i < SIDE / 16; ++i) {
            const int line = threadIdx.x / DEPTH + 16 * i;
            const i64 row = first_row + line < a.rows ? first_row + line : a.rows - 1;
            const bool inside = k + element < a.columns;
            w[element][line] = inside ? weight_at<W>(a.weights, ((i64)expert * a.matrix_rows + a.first + row) * a.columns + k + element) : 0.0f;
            x[element][line] = inside ? as_weight<W>(a.x[(i64)(outputs[line] / (int)a.input_of) * a.columns + k + element]) : 0.0f;
        }
        block_barrier();
#pragma unroll
        for (int e = 0; e < DEPTH; ++e) {
            float u[4], v[4];
            *(Word4*)u = *(const Word4*)(w[e] + r), *(Word4*)v = *(const Word4*)(x[e] + t);
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) sums[i][j] = fmaf(u[i], v[j], sums[i][j]);
        }
        block_barrier();
    }
    const float factor = a.factors != nullptr ? a.factors[expert] : 1.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const i64 row = first_row + r + i;
            if (row >= a.rows || t + j >= count) continue;
            float y = mul(sums[i][j], factor);
            if (a.bias != nullptr) y = add(y, a.bias[row]);
            float* target = a.out + (i64)outputs[t + j] * a.rows + row;
            *target = a.accumulate ? add(*target, mul((float)a.scale, y)) : y;
        }
}

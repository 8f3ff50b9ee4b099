// Rows of a prompt into records of int8 activations: after a norm, or after the activation between two products.
#include "activation.cuh"
#include "prompt_record.cuh"
#include "window.cuh"

#ifndef BLOCK
#define BLOCK 256
#endif

struct RoundRowsArguments {
    const Window* window;
    const float* x;     // [T * per_token, stride]
    const float* norm;  // [columns], or null: x is taken as it is
    double eps;
    i64 columns, stride, per_token;  // stride: floats from row to row of x
    float* normed;  // [T * per_token, columns]: the rows as f32 too, or null
    u8* records;    // or null
};

// a block of threads a row
KERNEL(round_rows, 256, RoundRowsArguments) {
    SHARED float room[32];
    const int columns = (int)a.columns, records = (columns + 255) / 256, lane = lane_id(), warp = threadIdx.x / 32;
    await_previous_kernel();
    let_next_kernel_start();
    if (blockIdx.x >= a.window->rows * a.per_token) return;
    const float* x = a.x + blockIdx.x * a.stride;
    float factor = 1.0f;
    if (a.norm != nullptr) {
        float squares = 0.0f;
        for (int at = 8 * threadIdx.x; at < columns; at += 8 * 256) {
            float v[8];
            load_eight(v, x, at, columns);
#pragma unroll
            for (int i = 0; i < 8; ++i) squares = add(squares, mul(v[i], v[i]));
        }
        squares = warp_sum(squares);
        if (lane == 0) room[warp] = squares;
        block_barrier();
        float total = 0.0f;
        for (int w = 0; w < 8; ++w) total = add(total, room[w]);
        factor = divide(1.0f, sqrtf(add(divide(total, (float)columns), (float)a.eps)));
    }
    for (int r = warp; r < records; r += 8) {
        float v[8];
        const int at = 256 * r + 8 * lane;
        load_eight(v, x, at, columns);
        if (a.norm != nullptr) {
            float weights[8];
            load_eight(weights, a.norm, at, columns);
#pragma unroll
            for (int i = 0; i < 8; ++i) v[i] = mul(mul(v[i], factor), weights[i]);
        }
        if (a.normed != nullptr) store_eight(a.normed + (i64)blockIdx.x * columns, v, at, columns);
        if (a.records != nullptr) round_record<BLOCK>(v, a.records + ((i64)blockIdx.x * records + r) * RECORD_BYTES);
    }
}

struct RoundHiddenArguments {
    const Window* window;
    const float *gate, *up;  // [T * per_token, columns]
    i64 columns, per_token, activation;
    const float *gate_bias, *up_bias;  // [experts, columns], or null
    const i32* ids;                    // [T * per_token]: the expert of each row, where there are biases
    float* hidden;                     // [T * per_token, columns]: the activations as f32, or null
    u8* records;                       // or null
};

// a warp a record
KERNEL(round_hidden, 256, RoundHiddenArguments) {
    const int columns = (int)a.columns, records = (columns + 255) / 256, lane = lane_id();
    await_previous_kernel();
    let_next_kernel_start();
    const i64 item = (i64)blockIdx.x * 8 + threadIdx.x / 32, row = item / records;
    if (row >= a.window->rows * a.per_token) return;
    const int first = 256 * (int)(item % records) + 8 * lane;
    const i64 expert = a.gate_bias != nullptr ? a.ids[row] : 0;
    float v[8], gate[8], up[8];
    load_eight(gate, a.gate + row * columns, first, columns);
    load_eight(up, a.up + row * columns, first, columns);
    if (a.gate_bias != nullptr) {
        float bias[8];
        load_eight(bias, a.gate_bias + expert * columns, first, columns);
#pragma unroll
        for (int i = 0; i < 8; ++i) gate[i] = add(gate[i], bias[i]);
        load_eight(bias, a.up_bias + expert * columns, first, columns);
#pragma unroll
        for (int i = 0; i < 8; ++i) up[i] = add(up[i], bias[i]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = first + i < columns ? activate((int)a.activation, gate[i], up[i]) : 0.0f;
    if (a.hidden != nullptr) store_eight(a.hidden + row * columns, v, first, columns);
    if (a.records != nullptr) round_record<BLOCK>(v, a.records + item * RECORD_BYTES);
}

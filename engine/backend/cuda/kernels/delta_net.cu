// The gated delta rule in a window: the short convolution, and for every value head the recurrence over the window's tokens
// with its gated norm. The state stays in registers from the first token to the last.
#include "window.cuh"
#include "platform.cuh"

#ifndef DIM
#define DIM 128
#endif

struct ConvolutionArguments {
    const Window* window;
    const float* x;        // [T, channels]
    const float* weights;  // [taps, channels]
    float* history;        // [(taps - 1) * dilation, channels], oldest first
    i64 channels, taps, dilation, add;
    float* out;  // [T, channels]: silu of the sums, or those added to it
};

// A thread takes a channel, so that nobody else reads the history when it moves.
KERNEL(convolution, 128, ConvolutionArguments) {
    await_previous_kernel();
    let_next_kernel_start();
    const i64 c = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    const int rows = (int)a.window->rows, taps = (int)a.taps, dilation = (int)a.dilation, depth = (taps - 1) * dilation;
    if (c >= a.channels) return;
    for (int t = 0; t < rows; ++t) {
        float total = 0.0f;
        for (int k = 0; k < taps; ++k) {
            const int row = t - (taps - 1 - k) * dilation;
            total = add(total, mul(a.weights[k * a.channels + c], row >= 0 ? a.x[row * a.channels + c] : a.history[(row + depth) * a.channels + c]));
        }
        total = mul(total, sigmoid(total));
        float* out = a.out + t * a.channels + c;
        *out = a.add ? add(*out, total) : total;
    }
    for (int r = 0; r < depth; ++r) {  // ascending: a row is read before it is overwritten
        const int row = rows + r - depth;
        a.history[r * a.channels + c] = row >= 0 ? a.x[row * a.channels + c] : a.history[(row + depth) * a.channels + c];
    }
}

struct RecurrenceArguments {
    const Window* window;
    const float* qkv;             // [T, key heads + key heads + value heads, DIM]
    const float *alpha, *beta;    // [T, value heads], as projected
    const float *decay, *offset;  // [value heads]
    const float *gate, *norm;     // [T, value heads, DIM], [DIM]
    i64 key_heads, value_heads, silu;
    double eps;
    float* state;  // [value heads, DIM, DIM], keys first
    float* out;    // [T, value heads, DIM]
};

static constexpr int QUARTERS = 4, HELD = DIM / QUARTERS;

// sum over 4 * DIM threads, by warps in order
DEVICE float sum_over_block(float v, float* room) {
    v = warp_sum(v);
    block_barrier();
    if (lane_id() == 0) room[threadIdx.x / 32] = v;
    block_barrier();
    float total = 0.0f;
    for (int w = 0; w < QUARTERS * DIM / 32; ++w) total = add(total, room[w]);
    return total;
}

// One block a value head; a thread holds a quarter of a value column.
KERNEL(recurrence, 4 * DIM, RecurrenceArguments) {
    SHARED float query[DIM], key[DIM], parts[QUARTERS * DIM], room[32];
    await_previous_kernel();
    let_next_kernel_start();
    const int head = blockIdx.x, column = threadIdx.x % DIM, quarter = threadIdx.x / DIM;
    const int key_head = head % (int)a.key_heads, rows = (int)a.window->rows;
    float* mine = a.state + ((i64)head * DIM + quarter * HELD) * DIM + column;
    float s[HELD];
#pragma unroll
    for (int i = 0; i < HELD; ++i) s[i] = mine[i * DIM];
    for (int t = 0; t < rows; ++t) {
        const float* row = a.qkv + t * (2 * a.key_heads + a.value_heads) * DIM;
        const float *q = row + key_head * DIM, *k = row + (a.key_heads + key_head) * DIM;
        const float *v = row + (2 * a.key_heads + head) * DIM;
        // unit vectors; the query is divided by the root of the dimension too
        const bool low = quarter == 0;
        const float q_squares = sum_over_block(low ? mul(q[column], q[column]) : 0.0f, room);
        const float k_squares = sum_over_block(low ? mul(k[column], k[column]) : 0.0f, room);
        if (low) {
            query[column] = mul(q[column], divide(divide(1.0f, sqrtf((float)DIM)), sqrtf(add(q_squares, 1e-6f))));
            key[column] = mul(k[column], divide(1.0f, sqrtf(add(k_squares, 1e-6f))));
        }
        block_barrier();
        const i64 at = t * a.value_heads + head;
        const float x = add(a.alpha[at], a.offset[head]);
        const float softplus = add(fmaxf(x, 0.0f), log1pf(expf(-fabsf(x))));
        const float decay = expf(mul(a.decay[head], x == x ? softplus : x)), beta = sigmoid(a.beta[at]);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            s[i] = mul(s[i], decay);
            sum = add(sum, mul(s[i], key[quarter * HELD + i]));
        }
        parts[quarter * DIM + column] = sum;
        block_barrier();
        const float held = add(add(parts[column], parts[DIM + column]), add(parts[2 * DIM + column], parts[3 * DIM + column]));
        const float u = mul(beta, sub(v[column], held));
        float mixed = 0.0f;
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            s[i] = add(s[i], mul(key[quarter * HELD + i], u));
            mixed = add(mixed, mul(s[i], query[quarter * HELD + i]));
        }
        block_barrier();
        parts[quarter * DIM + column] = mixed;
        block_barrier();
        float y = 0.0f;
        if (low) y = add(add(parts[column], parts[DIM + column]), add(parts[2 * DIM + column], parts[3 * DIM + column]));
        const float squares = sum_over_block(low ? mul(y, y) : 0.0f, room);
        if (low) {
            y = mul(mul(y, divide(1.0f, sqrtf(add(divide(squares, (float)DIM), (float)a.eps)))), a.norm[column]);
            const float z = a.gate[at * DIM + column];
            a.out[at * DIM + column] = mul(y, a.silu ? mul(z, sigmoid(z)) : sigmoid(z));
        }
        block_barrier();
    }
#pragma unroll
    for (int i = 0; i < HELD; ++i) mine[i * DIM] = s[i];
}

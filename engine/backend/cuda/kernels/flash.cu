// Hyper-connections and n-gram embeddings of `qwen4exp` in a window.
#include "rounding.cuh"
#include "window.cuh"

struct LowRankArguments {
    const Window* window;
    float* x;  // [T, columns], in place: silu(x / streams)
    i64 columns, streams;
};

KERNEL(low_rank, 128, LowRankArguments) {
    await_previous_kernel();
    let_next_kernel_start();
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (blockIdx.y >= a.window->rows || i >= a.columns) return;
    const float v = mul(a.x[blockIdx.y * a.columns + i], divide(1.0f, (float)a.streams));
    a.x[blockIdx.y * a.columns + i] = mul(v, sigmoid(v));
}

struct MixArguments {
    const Window* window;
    const float *gate, *normed;  // [T, streams, columns]
    float* inject;               // [T, streams], becomes 2 sigmoid(inject / streams); or null
    i64 columns, streams;
    float* out;  // [T, columns]: mean over streams of sigmoid(gate) * normed
};

KERNEL(mix_streams, 256, MixArguments) {
    await_previous_kernel();
    let_next_kernel_start();
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y;
    if (t >= a.window->rows) return;
    if (i < a.columns) {
        float total = 0.0f;
        for (int s = 0; s < a.streams; ++s) {
            const i64 at = (t * a.streams + s) * a.columns + i;
            total = add(total, mul(sigmoid(a.gate[at]), a.normed[at]));
        }
        a.out[t * a.columns + i] = divide(total, (float)a.streams);
    }
    if (a.inject != nullptr && i < a.streams) {
        float* inject = a.inject + t * a.streams + i;
        *inject = mul(2.0f, sigmoid(divide(*inject, (float)a.streams)));
    }
}

struct WriteStreamsArguments {
    const Window* window;
    const float *y, *inject;  // [T, columns], [T, streams]
    i64 columns, streams;
    float* x;  // [T, streams, columns]: x += inject * y
};

KERNEL(write_streams, 256, WriteStreamsArguments) {
    await_previous_kernel();
    let_next_kernel_start();
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y;
    if (t >= a.window->rows || i >= a.columns) return;
    for (int s = 0; s < a.streams; ++s) {
        float* x = a.x + (t * a.streams + s) * a.columns + i;
        *x = add(*x, mul(a.inject[t * a.streams + s], a.y[t * a.columns + i]));
    }
}

struct NgramRowsArguments {
    const Window* window;
    const i32* history;                        // [context], the window's tokens included
    const i64 *multipliers, *sizes, *offsets;  // [n], [heads], [heads]
    i64 heads, per_ngram, reset_token;
    i32* rows;  // [T, heads]
};

// Rows of the table for every token: exact integers. A reset token, and whatever is before the text, hides itself and all that
// is older, but not when it is the newest.
KERNEL(ngram_rows, 128, NgramRowsArguments) {
    await_previous_kernel();
    let_next_kernel_start();
    const int item = blockIdx.x * blockDim.x + threadIdx.x, t = item / (int)a.heads, head = item % (int)a.heads;
    if (t >= a.window->rows) return;
    const i64 position = a.window->position + t;
    i64 mixed = (i64)a.history[position] * a.multipliers[0];
    bool hidden = false;
    for (int back = 1; back < head / a.per_ngram + 2; ++back) {
        i64 token = a.reset_token;
        if (back <= position && !hidden) token = a.history[position - back];
        hidden = token == a.reset_token;
        mixed ^= token * a.multipliers[back];
    }
    a.rows[item] = (i32)(mixed % a.sizes[head] + a.offsets[head]);
}

struct NgramGateArguments {
    const Window* window;
    const float *key, *value;  // [T, streams, columns], [T, columns]
    const float *norm_key, *norm_query, *norm_out;  // [streams, columns]
    i64 columns, streams;
    double eps;
    float *x, *out;  // [T, streams, columns]: x += sigmoid(score) * value; out = what was added, normed
};

// block (stream, token)
KERNEL(ngram_gate, 256, NgramGateArguments) {
    SHARED float room[32];
    await_previous_kernel();
    let_next_kernel_start();
    const i64 t = blockIdx.y, stream = blockIdx.x;
    if (t >= a.window->rows) return;
    const int columns = (int)a.columns;
    const float *key = a.key + (t * a.streams + stream) * columns, *value = a.value + t * columns;
    float* x = a.x + (t * a.streams + stream) * columns;
    const float *norm_key = a.norm_key + stream * columns, *norm_query = a.norm_query + stream * columns;
    const float k = norm_factor(key, columns, (float)a.eps, room), q = norm_factor(x, columns, (float)a.eps, room);
    float dot = 0.0f;
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        dot = add(dot, mul(mul(mul(key[i], k), norm_key[i]), mul(mul(x[i], q), norm_query[i])));
    float score = divide(block_sum(dot, room), sqrtf((float)columns));
    const float root = sqrtf(fmaxf(fabsf(score), 1e-6f));
    if (score > 0) score = root;
    else if (score < 0) score = -root;  // zero stays zero, and what is no number stays none
    const float gate = sigmoid(score);
    float squares = 0.0f;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) {
        const float part = mul(gate, value[i]);
        squares = add(squares, mul(part, part));
    }
    const float o = divide(1.0f, sqrtf(add(divide(block_sum(squares, room), (float)columns), (float)a.eps)));
    for (int i = threadIdx.x; i < columns; i += blockDim.x) {
        const float part = mul(gate, value[i]);
        x[i] = add(x[i], part);
        a.out[(t * a.streams + stream) * columns + i] = mul(mul(part, o), a.norm_out[stream * columns + i]);
    }
}

// Elementwise work on rows of f32 that no product has taken along, and what closes a window.
#include "activation.cuh"
#include "rounding.cuh"
#include "window.cuh"

struct NormArguments {
    const Window* window;
    const float *x, *weight;  // [T, parts * columns], [parts * columns] or null
    double eps;
    i64 columns, parts;
    float* out;
};

// block (part, token)
KERNEL(norm_rows, 256, NormArguments) {
    SHARED float room[32];
    await_previous_kernel();
    let_next_kernel_start();
    if (blockIdx.y >= a.window->rows) return;
    const i64 at = (blockIdx.y * a.parts + blockIdx.x) * a.columns;
    const float factor = norm_factor(a.x + at, (int)a.columns, (float)a.eps, room);
    for (int i = threadIdx.x; i < a.columns; i += blockDim.x) {
        const float v = mul(a.x[at + i], factor);
        a.out[at + i] = a.weight != nullptr ? mul(v, a.weight[blockIdx.x * a.columns + i]) : v;
    }
}

struct AddArguments {
    const Window* window;
    const float* y;  // [T, columns]
    float* x;        // x = x_scale * x + scale * sigmoid(gate) * y
    const float* gate;  // [T], or null
    i64 columns;
    double x_scale, scale;
};

KERNEL(add_rows, 256, AddArguments) {
    await_previous_kernel();
    let_next_kernel_start();
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (blockIdx.y >= a.window->rows || i >= a.columns) return;
    const i64 at = blockIdx.y * a.columns + i;
    float v = a.y != nullptr ? a.y[at] : 0.0f;
    if (a.gate != nullptr) v = mul(v, sigmoid(a.gate[blockIdx.y]));
    a.x[at] = a.y != nullptr ? add(mul(a.x[at], (float)a.x_scale), mul(v, (float)a.scale)) : mul(a.x[at], (float)a.x_scale);
}

struct ActivateArguments {
    const Window* window;
    const float *gate, *up;  // [T, columns]
    i64 columns, activation;
    float* out;
};

KERNEL(activate_rows, 256, ActivateArguments) {
    await_previous_kernel();
    let_next_kernel_start();
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (blockIdx.y >= a.window->rows || i >= a.columns) return;
    const i64 at = blockIdx.y * a.columns + i;
    a.out[at] = activate((int)a.activation, a.gate[at], a.up[at]);
}

struct AdvanceArguments {
    Window* window;
    u64* best;        // [T] greatest logits, see matvec.cu
    i32* ring;        // [ring_size], read by the host: -1 where a logit was not a number
    i64 ring_size;
    const i32* stops;  // [n_stops] ascending
    i64 n_stops;
};

// One thread: the picked token becomes the next window's, and the host sees it.
KERNEL(advance, 32, AdvanceArguments) {
    await_previous_kernel();
    let_next_kernel_start();
    if (threadIdx.x != 0) return;
    const u64 key = a.best[0];
    const i32 token = key == ~(u64)0 ? -1 : (i32)(0xFFFFFFFFu - (u32)key);
    a.best[0] = 0;
    for (i64 i = 0; i < a.n_stops; ++i)
        if (a.stops[i] == token) a.window->stopped = 1;
    a.window->tokens[0] = token < 0 ? 0 : token;
    a.window->position += a.window->rows;
    a.window->rows = 1, a.window->out_first = 0, a.window->out_rows = 1;
    a.ring[a.window->steps % a.ring_size] = token;
    a.window->steps += 1;
    fence_system();
}

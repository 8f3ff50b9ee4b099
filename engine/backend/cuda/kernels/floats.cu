// Embeddings from a table of plain floats.
#include "floats.cuh"
#include "window.cuh"

#ifndef WEIGHT
#define WEIGHT F32
#endif

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

// Embeddings of the window's tokens: one block a token. Also the tokens' history, by position.
#include "dots.cuh"
#include "window.cuh"

#ifndef FORMAT
#define FORMAT Q4_K
#endif

struct EmbedArguments {
    const Window* window;
    const i32* tokens;  // [T, per_token] rows of the table, or null: the tokens of the window block
    const u8* table;
    i64 vocabulary, columns, copies, per_token;
    double scale;
    i32* history;  // [context], or null
    float* out;    // [T, per_token, copies * columns]
};

KERNEL(embed, 256, EmbedArguments) {
    typedef FORMAT F;
    const int t = blockIdx.x;
    await_previous_kernel();
    let_next_kernel_start();
    if (t >= a.window->rows * a.per_token) return;
    const i32 token = a.tokens != nullptr ? a.tokens[t] : a.window->tokens[t];
    if (threadIdx.x == 0 && a.history != nullptr) a.history[a.window->position + t] = token;
    const Matrix<F> table = Matrix<F>::at(a.table, a.vocabulary, a.columns);
    // eight elements a thread, in a loop that is not unrolled: a kernel that runs once a window must be short to be fetched
    for (int piece = threadIdx.x; piece < 8 * table.chunks; piece += blockDim.x) {
        const int c = piece / 8;
        const Chunk<F> w = Chunk<F>::load(table, token, c);
#pragma unroll 1
        for (int k = 0; k < 8; ++k) {
            const int i = 8 * (piece % 8) + k, at = 64 * c + i;
            if (at >= a.columns) break;
            const u32 byte = (Chunk<F>::codes(w, i / 32, i % 32 / 4) >> (8 * (i % 4))) & 255u;
            const i32 code = (F::SIGNED ? (i32)(i8)byte : (i32)byte) - F::OFFSET;
            float step = Chunk<F>::d(w, F::STEP == 256 ? 0 : i / F::STEP);
            if (F::SCALES != ONLY_HALF && !F::NARROW) step = mul(step, (float)Chunk<F>::scale(w, i / F::GROUP));
            float v = mul(step, (float)code);
            if (F::MINIMUMS) v = sub(v, mul(Chunk<F>::m(w, 0), (float)Chunk<F>::minimum(w, i / F::GROUP)));
            if (F::WEIGHTED) v = add(v, Chunk<F>::m(w, i / 32));
            v = mul(v, (float)a.scale);
            for (int copy = 0; copy < a.copies; ++copy) a.out[(t * a.copies + copy) * a.columns + at] = v;
        }
    }
}

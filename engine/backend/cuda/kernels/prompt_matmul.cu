// Products of quantized matrices with the tokens of a prompt, on tensor cores (prompt_tile.cuh): a block of threads takes ROWS
// rows of one expert's matrix and TOKENS of the tokens that chose it, or of a dense matrix and neighbouring tokens.
#include "prompt_tile.cuh"
#include "window.cuh"

#ifndef FORMAT
#define FORMAT Q4_K
#endif

struct PromptMatmulArguments {
    const Window* window;
    const i32* tiles;        // [capacity, 4]: expert, first pair, pairs, 0; null: one matrix, tokens as they follow each other
    const i32* tile_count;
    const i32* pairs;        // token * per_token + route, by expert
    const u8* records;       // [T * per_token of the input, records of a row]
    i64 columns, input_of;   // pairs that share an input row
    // up to three matrices (those that are not there have no rows): planes, bytes from one expert's to the next, rows of the
    // whole matrix, and which of them are wanted
    const u8 *weights0, *weights1, *weights2;
    i64 expert_bytes0, expert_bytes1, expert_bytes2;
    i64 matrix_rows0, matrix_rows1, matrix_rows2;
    i64 first0, first1, first2;
    i64 rows0, rows1, rows2;
    float *out0, *out1, *out2;  // [T * per_token, rows]
    const float *bias0, *bias1, *bias2;           // [rows], or null
    const float *factors0, *factors1, *factors2;  // [experts], or null
    i64 accumulate;  // out += scale * result
    double scale;
};

KERNEL(prompt_matmul, 128, PromptMatmulArguments) {
    typedef FORMAT F;
    DYNAMIC_SHARED(memory);
    SHARED i32 inputs[TOKENS], outputs[TOKENS];
    await_previous_kernel();
    let_next_kernel_start();
    int expert = 0, first_pair = TOKENS * blockIdx.y, count = (int)a.window->rows - first_pair;
    if (a.tiles != nullptr) {
        if ((i32)blockIdx.y >= *a.tile_count) return;
        expert = a.tiles[4 * blockIdx.y], first_pair = a.tiles[4 * blockIdx.y + 1], count = a.tiles[4 * blockIdx.y + 2];
    }
    if (count <= 0) return;
    if (count > TOKENS) count = TOKENS;

    SHARED Job shared_job;  // there they take no registers
    SHARED Matrix<F> shared_matrix;
    Job job;
    i64 tile = blockIdx.x;
    const i64 tiles0 = (a.rows0 + ROWS - 1) / ROWS, tiles1 = (a.rows1 + ROWS - 1) / ROWS;
    const u8* weights = a.weights0;
    i64 expert_bytes = a.expert_bytes0, wanted = a.rows0, first = a.first0, matrix_rows = a.matrix_rows0;
    const float* factors = a.factors0;
    job.out = a.out0, job.bias = a.bias0;
    if (tile >= tiles0) {
        tile -= tiles0, weights = a.weights1, expert_bytes = a.expert_bytes1, wanted = a.rows1, first = a.first1, factors = a.factors1;
        matrix_rows = a.matrix_rows1, job.out = a.out1, job.bias = a.bias1;
        if (tile >= tiles1) {
            tile -= tiles1, weights = a.weights2, expert_bytes = a.expert_bytes2, wanted = a.rows2, first = a.first2, factors = a.factors2;
            matrix_rows = a.matrix_rows2, job.out = a.out2, job.bias = a.bias2;
        }
    }
    if (ROWS * tile >= wanted) return;
    job.first = (int)(first + ROWS * tile);
    job.rows = (int)(wanted - ROWS * tile < ROWS ? wanted - ROWS * tile : ROWS), job.count = count;
    job.records = a.records, job.n_records = (int)((a.columns + 255) / 256), job.inputs = inputs, job.outputs = outputs;
    job.out += ROWS * tile, job.stride = wanted;
    if (job.bias != nullptr) job.bias += ROWS * tile;
    job.factor = factors != nullptr ? factors[expert] : 1.0f, job.scale = (float)a.scale, job.accumulate = a.accumulate;
    if (threadIdx.x < TOKENS) {  // past the end the last token again, into sums that nobody reads
        const int at = first_pair + ((int)threadIdx.x < count ? (int)threadIdx.x : count - 1);
        const i32 pair = a.pairs != nullptr ? a.pairs[at] : at;
        outputs[threadIdx.x] = pair;
        inputs[threadIdx.x] = pair / (int)a.input_of;
    }
    if (threadIdx.x == 0) shared_job = job, shared_matrix = Matrix<F>::at(weights + expert * expert_bytes, matrix_rows, a.columns);
    block_barrier();
    if (count > 32) multiply_tile<F, 8>(shared_job, shared_matrix, memory);
    else if (count > 16) multiply_tile<F, 4>(shared_job, shared_matrix, memory);
    else multiply_tile<F, 2>(shared_job, shared_matrix, memory);  // tokens that an expert has left over
}

// One tile of a prompt's product: ROWS rows of a matrix with up to TOKENS tokens, by a block of ROWS threads.
//
// A warp takes 32 rows and all tokens. Sums are the CPU backend's, bit for bit: an exact integer for each step of elements
// that share their floats (scales and minimums counted in), then f32 step by step in order; so a token's result does not
// depend on which tokens are with it. Loads of the next 256 columns are under way while the present ones are used.
#pragma once
#include "prompt_record.cuh"
#include "prompt_weights.cuh"

#ifndef STAGES
#define STAGES 2  // 1: loads are not ahead, for cards whose blocks have less shared memory
#endif

static constexpr int TOKENS = 64, THREADS = ROWS;
static constexpr int TAIL_ROW = 80;  // bytes of a token's scales and sums: no two of eight tokens in one bank
static constexpr int TAIL_AT = TOKENS * CODES_BYTES, TOKEN_BYTES = TAIL_AT + TOKENS * TAIL_ROW;

// What a block computes.
struct Job {
    int first, rows, count, n_records;  // first row of the tile in the matrix, rows and tokens of it, records of a token
    const u8* records;
    const i32 *inputs, *outputs;  // of the tokens: rows of the records, and of `out`
    float* out;                   // of the first row
    i64 stride;
    const float* bias;
    float factor, scale;
    bool accumulate;  // out += scale * result
};

// Results of the first 8 * PARTS tokens, [2][PARTS][4] a thread: of 16 rows and 8 tokens each, as the tensor core lays them out.
template <class F, int PARTS> struct Totals {
    typedef WeightTile<F> Tile;

    // the integers of 256 columns: sums of scale * weight * activation
    DEVICE void multiply_columns(i32 (&exact)[2][PARTS][4], const u8* weights, const u8* tokens) {
        const int lane = lane_id(), g = lane / 4, t = lane % 4, row = 32 * (threadIdx.x / 32) + g;
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int n = 0; n < PARTS; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) exact[m][n][i] = 0;
#pragma unroll 1
        for (int q = 0; q < 4; ++q) {
            Words<F> words[4];  // of rows g, g + 8, g + 16, g + 24
            u32 scales[4];      // two bytes of 32 elements each, or four of 16
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                words[r] = Words<F>::load(weights, row + 8 * r, q, t);
                const u8* at = weights + Tile::SCALES_AT + (row + 8 * r) * Tile::SCALES_ROW + 64 / F::GROUP * q;
                if (Tile::HAS_SCALES) scales[r] = F::GROUP == 32 ? *(const u16*)at : *(const u32*)at;
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                u32 a[2][4];
                unpack(a, words, half, t);
#pragma unroll
                for (int n = 0; n < PARTS; ++n) {
                    u32 b[2];
                    load_codes(b, tokens, 2 * q + half, 8 * n + g, t);
#pragma unroll
                    for (int m = 0; m < 2; ++m) {
                        if (!Tile::HAS_SCALES) {
                            mma_s8s8(exact[m][n], a[m], b);
                            continue;
                        }
#pragma unroll
                        for (int part = 0; part < 32 / F::GROUP; ++part) {
                            const int group = 32 * half / F::GROUP + part;
                            const i32 low = scale_of(scales[2 * m], group), high = scale_of(scales[2 * m + 1], group);
                            i32 p[4] = {0, 0, 0, 0};
                            multiply(p, a[m], b, part);
                            exact[m][n][0] += low * p[0], exact[m][n][1] += low * p[1];
                            exact[m][n][2] += high * p[2], exact[m][n][3] += high * p[3];
                        }
                    }
                }
            }
        }
    }

    // total += their floats
    DEVICE void add_columns(float (&total)[2][PARTS][4], const i32 (&exact)[2][PARTS][4], const u8* weights, const u8* tokens) {
        const int lane = lane_id(), g = lane / 4, t = lane % 4, row = 32 * (threadIdx.x / 32) + g;
        const float *d = (const float*)(weights + Tile::D_AT), *minus = (const float*)(weights + Tile::M_AT);
        u32 minimums[2][4];
        if (F::MINIMUMS)
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    minimums[m][i] = ((const u32*)(weights + Tile::MINIMUMS_AT + (row + 16 * m + 8 * (i % 2)) * Tile::MINIMUMS_ROW))[4 * (i / 2) + t];
#pragma unroll
        for (int n = 0; n < PARTS; ++n) {
            const u8* tail = tokens + TAIL_AT + (8 * n + 2 * t) * TAIL_ROW + (SCALE_AT - CODES_BYTES);
            const float d8[2] = {*(const float*)tail, *(const float*)(tail + TAIL_ROW)};
            const u32* words = (const u32*)(tokens + TAIL_AT + (8 * n + g) * TAIL_ROW);
            const u32 sums[2] = {words[t], words[4 + t]};
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                float less[4] = {0.0f, 0.0f, 0.0f, 0.0f};  // whole numbers below 2^24
                if (F::MINIMUMS) mma_f16(less, minimums[m], sums);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int r = row + 16 * m + 8 * (i / 2);
                    float term = mul(mul(d[r], d8[i % 2]), (float)exact[m][n][i]);
                    if (F::MINIMUMS) term = sub(term, mul(mul(minus[r], d8[i % 2]), less[i]));
                    total[m][n][i] = add(total[m][n][i], term);
                }
            }
        }
    }

    // total += 64 columns, for formats whose floats stand for 16 or 32 elements
    DEVICE void add_chunk(float (&total)[2][PARTS][4], const u8* weights, const u8* tokens, int q) {
        const int lane = lane_id(), g = lane / 4, t = lane % 4, row = 32 * (threadIdx.x / 32) + g;
        constexpr int STEPS = 32 / (F::STEP < 32 ? F::STEP : 32);  // of half a chunk
        const float *d = (const float*)(weights + Tile::D_AT), *plus = (const float*)(weights + Tile::M_AT);
        Words<F> words[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) words[r] = Words<F>::load(weights, row + 8 * r, q, t);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            u32 a[2][4];
            unpack(a, words, half, t);
            float ds[STEPS][4], ms[4];
#pragma unroll
            for (int r = 0; r < 4; ++r) {
#pragma unroll
                for (int s = 0; s < STEPS; ++s) ds[s][r] = d[ROWS * ((2 * q + half) * STEPS + s) + row + 8 * r];
                ms[r] = F::WEIGHTED ? plus[ROWS * (2 * q + half) + row + 8 * r] : 0.0f;
            }
#pragma unroll
            for (int n = 0; n < PARTS; ++n) {
                u32 b[2];
                load_codes(b, tokens, 2 * q + half, 8 * n + g, t);
                const u8* tail = tokens + TAIL_AT + (8 * n + 2 * t) * TAIL_ROW + 4 * (2 * q + half);
                const float d8[2] = {*(const float*)tail, *(const float*)(tail + TAIL_ROW)};
                const u8* behind = tail + (WEIGHTED_AT - CODES_BYTES);
#pragma unroll
                for (int m = 0; m < 2; ++m)
#pragma unroll
                    for (int s = 0; s < STEPS; ++s) {
                        i32 p[4] = {0, 0, 0, 0};
                        multiply(p, a[m], b, s);
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            float term = mul(mul(ds[s][2 * m + i / 2], d8[i % 2]), (float)p[i]);
                            if (F::WEIGHTED) term = add(term, mul(ms[2 * m + i / 2], *(const float*)(behind + (i % 2) * TAIL_ROW)));
                            total[m][n][i] = add(total[m][n][i], term);
                        }
                    }
            }
        }
    }

    // 16 x 8 products over 32 elements, or over 16 of them (`part` says which)
    DEVICE void multiply(i32 (&p)[4], const u32 (&a)[4], const u32 (&b)[2], int part) {
        if (F::GROUP == 32) {
            mma_s8s8(p, a, b);
        } else {
            const u32 only[4] = {a[2 * part], a[2 * part + 1], 0, 0}, those[2] = {b[part], 0};
            mma_s8s8(p, only, those);
        }
    }
    DEVICE void unpack(u32 (&a)[2][4], const Words<F> (&words)[4], int half, int t) {
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) a[m][i] = Words<F>::codes(words[2 * m + i % 2], half, i / 2, t);
    }
    // k: which 32 of the 256
    DEVICE void load_codes(u32 (&b)[2], const u8* tokens, int k, int token, int t) {
        const u64 both = *(const u64*)(tokens + k * TOKENS * 32 + (token ^ (k & 3)) * 32 + 8 * t);
        b[0] = (u32)both, b[1] = (u32)(both >> 32);
    }
    DEVICE i32 scale_of(u32 word, int byte) {
        return F::SCALES == SIGNED_16 || F::SCALES == SIGNED_8 ? (i32)(i8)(word >> (8 * byte)) : (i32)((word >> (8 * byte)) & 255u);
    }
};

// records of `count` tokens, superblock s: asynchronous copies
DEVICE void copy_tokens(u8* tokens, const u8* records, const i32* inputs, int count, int n_records, int s) {
    const int thread = threadIdx.x;
#pragma unroll
    for (int i = 0; i < TOKENS * 16 / THREADS; ++i) {
        const int token = i * (THREADS / 16) + thread / 16, piece = thread % 16, k = piece / 2;
        if (token < count)
            copy16_async(tokens + k * TOKENS * 32 + (token ^ (k & 3)) * 32 + 16 * (piece % 2),
                         records + ((i64)inputs[token] * n_records + s) * RECORD_BYTES + 16 * piece);
    }
#pragma unroll
    for (int i = 0; i < TOKENS * 4 / THREADS; ++i) {
        const int token = i * (THREADS / 4) + thread / 4, piece = thread % 4;
        if (token < count)
            copy16_async(tokens + TAIL_AT + token * TAIL_ROW + 16 * piece,
                         records + ((i64)inputs[token] * n_records + s) * RECORD_BYTES + CODES_BYTES + 16 * piece);
    }
}

// superblock s into a stage
template <class F> DEVICE void copy_stage(u8* stage, const Matrix<F>& matrix, const Job& job, int s) {
    WeightTile<F>::copy(stage, matrix, job.first, job.rows, 4 * s);
    copy_tokens(stage + WeightTile<F>::BYTES, job.records, job.inputs, (job.count + 7) / 8 * 8, job.n_records, s);
    copy_async_commit();
}

template <class F, int PARTS> DEVICE void multiply_tile(const Job& job, const Matrix<F>& matrix, u8* memory) {
    typedef WeightTile<F> Tile;
    constexpr int STAGE = Tile::BYTES + TOKEN_BYTES;
    const int thread = threadIdx.x;
    const int mine = job.first + (thread < job.rows ? thread : job.rows - 1);
    float total[2][PARTS][4];
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < PARTS; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) total[m][n][i] = 0.0f;

    copy_stage<F>(memory, matrix, job, 0);
    Scaling<F>::store(Scaling<F>::load(matrix, mine, 0), memory, thread);
    for (int s = 0; s < job.n_records; ++s) {
        u8 *now = memory + s % STAGES * STAGE, *next = memory + (s + 1) % STAGES * STAGE;
        const int chunk = 4 * (s + 1);
        copy_async_wait<0>();
        block_barrier();
        const bool more = s + 1 < job.n_records;
        if (STAGES == 2 && more) copy_stage<F>(next, matrix, job, s + 1);
        if (more) Scaling<F>::prefetch(matrix, mine, chunk);
        Scaling<F> scaling;  // is held as short as can be: registers are few
        if (Tile::NARROW) {
            const int chunks = (int)(matrix.chunks - 4 * s < 4 ? matrix.chunks - 4 * s : 4);
            for (int q = 0; q + 1 < chunks; ++q) Totals<F, PARTS>::add_chunk(total, now, now + Tile::BYTES, q);
            if (more) scaling = Scaling<F>::load(matrix, mine, chunk);
            Totals<F, PARTS>::add_chunk(total, now, now + Tile::BYTES, chunks - 1);
        } else {
            i32 exact[2][PARTS][4];
            Totals<F, PARTS>::multiply_columns(exact, now, now + Tile::BYTES);
            if (more) scaling = Scaling<F>::load(matrix, mine, chunk);
            Totals<F, PARTS>::add_columns(total, exact, now, now + Tile::BYTES);
        }
        if (STAGES == 1) block_barrier();
        if (STAGES == 1 && more) copy_stage<F>(next, matrix, job, s + 1);
        if (more) Scaling<F>::store(scaling, next, thread);
    }

    const int lane = lane_id(), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = 32 * (thread / 32) + 16 * m + 8 * (i / 2) + g;
            if (row >= job.rows) continue;
            const float bias = job.bias != nullptr ? job.bias[row] : 0.0f;
#pragma unroll
            for (int n = 0; n < PARTS; ++n) {
                const int token = 8 * n + 2 * t + i % 2;
                if (token >= job.count) continue;
                float y = mul(total[m][n][i], job.factor);
                if (job.bias != nullptr) y = add(y, bias);
                float* target = job.out + (i64)job.outputs[token] * job.stride + row;
                *target = job.accumulate ? add(*target, mul(job.scale, y)) : y;
            }
        }
}


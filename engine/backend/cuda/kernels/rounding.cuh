// Rows of f32 as int8 activations in shared (or global) memory, with the norm before them, by one block of 256 threads.
//
// Of one row: codes, chunk by chunk of 64 elements in four pieces of 16 bytes (piece k of chunk c at (k * chunks + c) * 16,
// so that lanes of a warp, a chunk each, read neighbouring words); four i32 sums of 16 a chunk; f32 scales, one a 256 or a 32;
// f32 weighted sums a 32 where the format asks for them. Rounding is half to even; scales of 32 go through f16. A NaN stays
// one, in the scale of its block.
#pragma once
#include "formats.cuh"

// `kind` of rounding: what one weight format asks of its activations
template <class F> struct Rounded {
    u8* codes;
    i32* sums;
    float *scales, *weighted;
    int chunks;

    DEVICE int scale_count(int chunks) { return (chunks * 64 + F::ACTIVATION_BLOCK - 1) / F::ACTIVATION_BLOCK; }
    // bytes of one row, a multiple of 16
    DEVICE int row_bytes(int chunks) {
        return chunks * 80 + (scale_count(chunks) * 4 + 15) / 16 * 16 + (F::WEIGHTED ? chunks * 8 + 8 : 0) / 16 * 16;
    }
    DEVICE Rounded at(u8* memory, int chunks, int row) {
        Rounded r;
        u8* base = memory + (i64)row * row_bytes(chunks);
        r.codes = base;
        r.sums = (i32*)(base + chunks * 64);
        r.scales = (float*)(base + chunks * 80);
        r.weighted = (float*)(base + chunks * 80 + (scale_count(chunks) * 4 + 15) / 16 * 16);
        r.chunks = chunks;
        return r;
    }
};

// sum over the block of a value of every thread, the same for all; `room` holds a float for every warp
DEVICE float block_sum(float v, float* room) {
    v = warp_sum(v);
    block_barrier();
    if (lane_id() == 0) room[threadIdx.x / 32] = v;
    block_barrier();
    float total = 0.0f;
    for (int w = 0; w < (int)blockDim.x / 32; ++w) total = add(total, room[w]);
    return total;
}

// 1 / sqrt(mean of squares + eps) of x f32 [columns]
DEVICE float norm_factor(const float* x, int columns, float eps, float* room) {
    float squares = 0.0f;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) squares = add(squares, mul(x[i], x[i]));
    return divide(1.0f, sqrtf(add(divide(block_sum(squares, room), (float)columns), eps)));
}

// A row f32 [columns] in the registers of a block of 256 threads: warp w holds blocks w, w + 8, … of 256 elements, a lane eight
// of each. BLOCKS is how many blocks a warp has at most. Columns are a multiple of 8.
template <int BLOCKS> struct Row {
    alignas(16) float v[BLOCKS][8];

    DEVICE int first(int i) { return 256 * (threadIdx.x / 32 + 8 * i) + 8 * lane_id(); }
    DEVICE void load(Row& r, const float* x, int columns) {
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
            const int at = first(i);
#pragma unroll
            for (int k = 0; k < 8; ++k) r.v[i][k] = 0.0f;
            if (at >= columns) continue;
            *(Word4*)(r.v[i]) = *(const Word4*)(x + at);
            *(Word4*)(r.v[i] + 4) = *(const Word4*)(x + at + 4);
        }
    }
    // times 1 / sqrt(mean of squares + eps) and a weight; each of PIECES equal parts (whole eights) for itself. `room` holds a
    // float for every part of every warp; `factors` [PIECES], if it is there, gets those of the norms
    template <int PIECES = 1> DEVICE void norm(Row& r, const Row& weight, int columns, float eps, float* room, float* factors = nullptr) {
        const int part = columns / PIECES, warp = threadIdx.x / 32;
        float squares[PIECES], factor[PIECES];
#pragma unroll
        for (int p = 0; p < PIECES; ++p) squares[p] = 0.0f;
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i)
#pragma unroll
            for (int p = 0; p < PIECES; ++p)
                if (PIECES == 1 || first(i) / part == p)
#pragma unroll
                    for (int k = 0; k < 8; ++k) squares[p] = add(squares[p], mul(r.v[i][k], r.v[i][k]));
#pragma unroll
        for (int p = 0; p < PIECES; ++p) squares[p] = warp_sum(squares[p]);
        block_barrier();
        if (lane_id() == 0)
#pragma unroll
            for (int p = 0; p < PIECES; ++p) room[8 * p + warp] = squares[p];
        block_barrier();
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
            float total = 0.0f;
#pragma unroll
            for (int w = 0; w < 8; ++w) total = add(total, room[8 * p + w]);
            factor[p] = divide(1.0f, sqrtf(add(divide(total, (float)part), eps)));
            if (factors != nullptr && threadIdx.x == 0) factors[p] = factor[p];
        }
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
            float mine = factor[0];
#pragma unroll
            for (int p = 1; p < PIECES; ++p) mine = first(i) / part == p ? factor[p] : mine;
#pragma unroll
            for (int k = 0; k < 8; ++k) r.v[i][k] = mul(mul(r.v[i][k], mine), weight.v[i][k]);
        }
    }
    DEVICE void store(const Row& r, float* out, int columns) {
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
            const int at = first(i);
            if (at >= columns) continue;
            *(Word4*)(out + at) = *(const Word4*)(r.v[i]);
            *(Word4*)(out + at + 4) = *(const Word4*)(r.v[i] + 4);
        }
    }
};

// eight neighbouring elements of a lane, part of a block of 256 of the row, rounded
template <class F> DEVICE void round_block(const float (&v)[8], int block, const Rounded<F>& out) {
    const int lane = lane_id();
    u32 top = 0;  // bits of |v| order as integers, and those of a NaN are above all
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const u32 size = float_to_bits(v[i]) & 0x7FFFFFFFu;
        top = size > top ? size : top;
    }
    float inverse = 0.0f, d = 0.0f;
    if (F::ACTIVATION_BLOCK == 256) {  // the value of largest size (the first of equals) keeps its sign and becomes -127
        const u32 greatest = warp_greatest(top);
        float extreme = 0.0f;
#pragma unroll
        for (int i = 7; i >= 0; --i)
            if ((float_to_bits(v[i]) & 0x7FFFFFFFu) == greatest) extreme = v[i];
        const u32 holders = warp_ballot(top == greatest);
        extreme = shuffle(extreme, 31 - leading_zeros(holders & (0u - holders)));
        if (greatest != 0) {
            inverse = divide(-127.0f, extreme);
            d = divide(1.0f, inverse);
        }
    } else {
        for (int m = 2; m > 0; m >>= 1) {
            const u32 other = shuffle_xor(top, m);
            top = other > top ? other : top;
        }
        d = divide(bits_to_float(top), 127.0f);
        if (top != 0) inverse = divide(1.0f, d);
    }
    u32 packed[2] = {0, 0};
    i32 sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const i32 code = (i32)round_even(mul(v[i], inverse));
        sum += code;
        packed[i / 4] |= ((u32)code & 255u) << (8 * (i % 4));
    }
    const i32 sum16 = sum + shuffle_xor(sum, 1), sum32 = sum16 + shuffle_xor(sum16, 2);
    const int chunk = 4 * block + lane / 8, part = lane % 8;  // 8 elements of the chunk each
    if (chunk >= out.chunks) return;
    u32* codes = (u32*)(out.codes + ((part / 2) * out.chunks + chunk) * 16 + 8 * (part % 2));
    codes[0] = packed[0], codes[1] = packed[1];
    if (part % 2 == 0) out.sums[4 * chunk + part / 2] = sum16;
    if (F::ACTIVATION_BLOCK == 256) {
        if (lane == 0) out.scales[block] = d;
    } else if (part % 4 == 0) {
        out.scales[2 * chunk + part / 4] = half_to_float(float_to_half(d));
        if (F::WEIGHTED) out.weighted[2 * chunk + part / 4] = half_to_float(float_to_half(mul(d, (float)sum32)));
    }
}

// a whole row; every thread of the block calls it, and the caller puts a barrier behind it
template <class F, int BLOCKS> DEVICE void round_row(const Row<BLOCKS>& r, const Rounded<F>& out) {
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
        const int block = threadIdx.x / 32 + 8 * i;
        if (4 * block < out.chunks) round_block<F>(r.v[i], block, out);
    }
}

// Rows of f32 as int8 activations in shared (or global) memory, with the norm before them, by one block of threads.
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

// one row f32 [columns] times `factor` (and times weight[i] where there is one), rounded. Every thread of the block calls it;
// the caller puts a barrier behind it.
template <class F>
DEVICE void round_row(const float* x, int columns, float factor, const float* weight, const Rounded<F>& out) {
    const int lane = lane_id(), warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int ends = (out.chunks * 64 + 255) / 256;
    for (int block = warp; block < ends; block += warps) {
        const int first = 256 * block + 8 * lane;
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int at = first + i;
            v[i] = at < columns ? x[at] : 0.0f;
            if (weight != nullptr && at < columns) v[i] = mul(mul(v[i], factor), weight[at]);
        }
        u32 top = 0;  // bits of |v| order as integers, and those of a NaN are above all
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const u32 size = float_to_bits(v[i]) & 0x7FFFFFFFu;
            top = size > top ? size : top;
        }
        const int span = F::ACTIVATION_BLOCK == 256 ? 16 : 2;  // lanes that share a scale: 32, or 4
        for (int m = span; m > 0; m >>= 1) {
            const u32 other = shuffle_xor(top, m);
            top = other > top ? other : top;
        }
        float inverse = 0.0f, d = 0.0f;
        if (F::ACTIVATION_BLOCK == 256) {  // the value of largest size (the first of equals) keeps its sign and becomes -127
            int mine = 8;
#pragma unroll
            for (int i = 7; i >= 0; --i)
                if ((float_to_bits(v[i]) & 0x7FFFFFFFu) == top) mine = i;
            const u32 holders = warp_ballot(mine < 8);
            float extreme = 0.0f;
#pragma unroll
            for (int i = 0; i < 8; ++i)
                if (i == mine) extreme = v[i];
            extreme = shuffle(extreme, 31 - leading_zeros(holders & (0u - holders)));
            if (top != 0) {
                inverse = divide(-127.0f, extreme);
                d = divide(1.0f, inverse);
            }
        } else {
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
        if (chunk < out.chunks) {
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
    }
}

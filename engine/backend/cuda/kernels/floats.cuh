// Plain floats as weights: how a block keeps a row of activations for them, and a lane's part of a product with one row.
#pragma once
#include "rounding.cuh"

struct F32 {
    static constexpr int BYTES = 4;
    DEVICE float at(const u8* row, i64 i) { return ((const float*)row)[i]; }
    DEVICE float of(const Word4& v, int i) { return bits_to_float(i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w); }
    DEVICE float rounded(float x) { return x; }  // an activation, as the format asks for it
};
struct F16 {
    static constexpr int BYTES = 2;
    DEVICE float at(const u8* row, i64 i) { return half_to_float(((const u16*)row)[i]); }
    DEVICE float of(const Word4& v, int i) { return half_to_float((u16)((i < 2 ? v.x : i < 4 ? v.y : i < 6 ? v.z : v.w) >> (16 * (i % 2)))); }
    DEVICE float rounded(float x) { return half_to_float(float_to_half(x)); }
};
struct BF16 {
    static constexpr int BYTES = 2;
    DEVICE float at(const u8* row, i64 i) { return bits_to_float((u32)((const u16*)row)[i] << 16); }
    DEVICE float of(const Word4& v, int i) { return bits_to_float((u32)(u16)((i < 2 ? v.x : i < 4 ? v.y : i < 6 ? v.z : v.w) >> (16 * (i % 2))) << 16); }
    DEVICE float rounded(float x) {
        const u32 bits = float_to_bits(x);
        if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return x;
        return bits_to_float((bits + 0x7FFFu + ((bits >> 16) & 1)) & 0xFFFF0000u);
    }
};

template <class F> struct IsFloat { static constexpr bool value = false; };
template <> struct IsFloat<F32> { static constexpr bool value = true; };
template <> struct IsFloat<F16> { static constexpr bool value = true; };
template <> struct IsFloat<BF16> { static constexpr bool value = true; };

// A row f32 [columns] as the format W asks for it, into shared memory; each of PIECES equal parts through its norm, where
// there is a norm. factors [PIECES], if it is there: of the norms. The caller puts a barrier behind it.
template <class W, int PIECES> DEVICE void stage_row(float* values, const float* x, const float* norm, int columns, float eps, float* room, float* factors) {
    const int part = columns / PIECES;
    for (int p = 0; p < PIECES; ++p) {
        const float factor = norm != nullptr ? norm_factor(x + p * part, part, eps, room) : 1.0f;
        if (factors != nullptr && threadIdx.x == 0) factors[p] = factor;
        for (int i = p * part + threadIdx.x; i < (p + 1) * part; i += blockDim.x)
            values[i] = W::rounded(norm != nullptr ? mul(mul(x[i], factor), norm[i]) : x[i]);
    }
}

// lane `lane` of `lanes`: its share of the product of a row of weights with `values` f32 [columns]
template <class W> DEVICE float lane_share(const u8* row, const float* values, int columns, int lane, int lanes) {
    constexpr int N = 16 / W::BYTES;
    float sums[N];
#pragma unroll
    for (int k = 0; k < N; ++k) sums[k] = 0.0f;
    if (columns % N == 0) {
#pragma unroll 8
        for (int i = N * lane; i < columns; i += N * lanes) {
            const Word4 word = load_weights16(row + (i64)i * W::BYTES);
#pragma unroll
            for (int k = 0; k < N; ++k) sums[k] = add(sums[k], mul(W::of(word, k), values[i + k]));
        }
    } else {
        for (int i = lane; i < columns; i += lanes) sums[0] = add(sums[0], mul(W::at(row, i), values[i]));
    }
#pragma unroll
    for (int k = N / 2; k > 0; k /= 2)
#pragma unroll
        for (int j = 0; j < k; ++j) sums[j] = add(sums[j], sums[j + k]);
    return sums[0];
}

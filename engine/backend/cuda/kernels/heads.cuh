// Norm and rotation of one head by one warp, as attention and the index before it need them: by way of memory for any
// shape, and in registers where both halves of a rotated pair lie in the same lane.
#pragma once
#include "platform.cuh"

// one head f32 [dim] from `x` into `y` (which may be `x`), normed and rotated, by one warp
DEVICE void place(const float* x, float* y, int dim, const float* norm, bool bare, float eps, const float* angles, int rotary, bool adjacent) {
    const int lane = lane_id();
    float factor = 1.0f;
    if (norm != nullptr || bare) {
        float squares = 0.0f;
        for (int i = lane; i < dim; i += 32) squares = add(squares, mul(x[i], x[i]));
        factor = divide(1.0f, sqrtf(add(divide(warp_sum(squares), (float)dim), eps)));
    }
    for (int i = lane; i < dim; i += 32) {
        float v = mul(x[i], factor);
        if (norm != nullptr) v = mul(v, norm[i]);
        y[i] = v;
    }
    warp_barrier();
    if (angles == nullptr) return;
    const int half = rotary / 2;
    for (int i = lane; i < half; i += 32) {
        const int first = adjacent ? 2 * i : i, second = adjacent ? 2 * i + 1 : i + half;
        const float c = angles[i], s = angles[half + i], p = y[first], q = y[second];
        y[first] = sub(mul(p, c), mul(q, s));
        y[second] = add(mul(q, c), mul(p, s));
    }
    warp_barrier();
}

// One head [SIZE] in the registers of a warp: lane l holds elements l, l + 32, …. Weights and angles can be loaded before the
// head itself is there.
template <int SIZE> struct Head {
    static constexpr int N = (SIZE + 31) / 32;
    float v[N];

    // whether `turn` can be done in registers: pairs are halves apart, and the half is whole in 32s
    DEVICE bool fits(int rotary, bool adjacent) { return SIZE % 32 == 0 && !adjacent && rotary % 64 == 0; }
    DEVICE Head load(const float* x) {
        Head h;
#pragma unroll
        for (int k = 0; k < N; ++k) h.v[k] = x[lane_id() + 32 * k];
        return h;
    }
    DEVICE void norm(Head& h, const Head& weight, bool weighted, float eps) {
        float squares = 0.0f;
#pragma unroll
        for (int k = 0; k < N; ++k) squares = add(squares, mul(h.v[k], h.v[k]));
        const float factor = divide(1.0f, sqrtf(add(divide(warp_sum(squares), (float)SIZE), eps)));
#pragma unroll
        for (int k = 0; k < N; ++k) {
            h.v[k] = mul(h.v[k], factor);
            if (weighted) h.v[k] = mul(h.v[k], weight.v[k]);
        }
    }
    // angles: cosines, then sines, of the pairs, element k of a lane at lane + 32 * k
    DEVICE void turn(Head& h, const Head& angles, int rotary) {
        const int half = rotary / 64;
#pragma unroll
        for (int k = 0; k < N / 2; ++k)
#pragma unroll
            for (int other = 1; other < N; ++other) {  // other == half + k, known when compiling
                if (k >= half || other != half + k) continue;
                const float c = angles.v[k], s = angles.v[other], p = h.v[k], q = h.v[other];
                h.v[k] = sub(mul(p, c), mul(q, s));
                h.v[other] = add(mul(q, c), mul(p, s));
            }
    }
};

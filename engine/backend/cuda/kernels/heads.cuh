// Norm and rotation of one head by one warp, as attention and the index before it need them.
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

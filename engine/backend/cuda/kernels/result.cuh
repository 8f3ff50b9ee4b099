// Where a product's result goes.
#pragma once
#include "platform.cuh"

// y, row `row` of token t, into out f32 [T, rows]: in the place of what is there, or times `scale` added to it. With `inject`
// f32 [T, streams] it is added to each stream of out f32 [T, streams, rows], times that stream's weight.
DEVICE void put(float* out, i64 rows, i64 row, i64 t, float y, bool accumulate, float scale, const float* inject, int streams) {
    if (inject == nullptr) {
        float* target = out + t * rows + row;
        *target = accumulate ? add(*target, mul(scale, y)) : y;
        return;
    }
    for (int s = 0; s < streams; ++s) {
        float* target = out + (t * streams + s) * rows + row;
        *target = add(*target, mul(inject[t * streams + s], y));
    }
}

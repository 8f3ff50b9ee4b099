// Products of a chunk of weights with a chunk of activations, and their sums over a row in the one order that the CPU has
// too: an exact integer for each step of elements that share their floats, then f32 step by step. So a result does not
// depend on who computes it. A warp takes a row, a lane a chunk of 64.
#pragma once
#include "rounding.cuh"

// the activations of one chunk, in registers
struct Inputs {
    alignas(16) u32 x[16];
    alignas(16) i32 sums[4];
};

template <class F> DEVICE Inputs load_inputs(const Rounded<F>& r, int c) {
    Inputs in;
    if (c >= r.chunks) c = 0;  // its weights count as zeros
#pragma unroll
    for (int k = 0; k < 4; ++k) *(Word4*)(in.x + 4 * k) = *(const Word4*)(r.codes + (k * r.chunks + c) * 16);
    *(Word4*)in.sums = *(const Word4*)(r.sums + 4 * c);
    return in;
}

template <class F> DEVICE i32 dot_run(const Chunk<F>& w, const Inputs& in, int half, int first, int count) {
    i32 p = 0;
#pragma unroll
    for (int k = 0; k < count; ++k) {
        const u32 codes = Chunk<F>::codes(w, half, first + k);
        p = F::SIGNED ? dot4_signed(codes, in.x[8 * half + first + k], p) : dot4(codes, in.x[8 * half + first + k], p);
    }
    return p;
}

// The f32 terms of one chunk: of its superblock of 256 (the same on its four lanes), or of its two or four own steps.
template <class F> struct Terms {
    static constexpr int N = F::STEP == 256 ? 1 : 64 / F::STEP;
    float t[N];

    DEVICE Terms of(const Chunk<F>& w, const Inputs& in, const Rounded<F>& r, int c) {
        Terms out;
        if (c >= r.chunks) c = 0;
        if (F::STEP == 256) {
            i32 exact = 0, minus = 0;
#pragma unroll
            for (int g = 0; g < 64 / F::GROUP; ++g) {
                const int half = g * F::GROUP / 32, first = g * F::GROUP % 32 / 4;
                i32 p = dot_run(w, in, half, first, F::GROUP / 4);
                const i32 s = F::GROUP == 16 ? in.sums[g & 3] : in.sums[(2 * g) & 3] + in.sums[(2 * g + 1) & 3];
                if (F::OFFSET) p -= F::OFFSET * s;
                exact += Chunk<F>::scale(w, g) * p;
                if (F::MINIMUMS) minus += Chunk<F>::minimum(w, g) * s;
            }
            exact += shuffle_xor(exact, 1);
            exact += shuffle_xor(exact, 2);
            const float d8 = r.scales[c / 4];
            float term = mul(mul(Chunk<F>::d(w, 0), d8), (float)exact);
            if (F::MINIMUMS) {
                minus += shuffle_xor(minus, 1);
                minus += shuffle_xor(minus, 2);
                term = sub(term, mul(mul(Chunk<F>::m(w, 0), d8), (float)minus));
            }
            out.t[0] = term;
        } else {
#pragma unroll
            for (int s = 0; s < N; ++s) {
                const int half = s * F::STEP / 32, first = s * F::STEP % 32 / 4;
                i32 p = dot_run(w, in, half, first, F::STEP / 4);
                if (F::OFFSET) {
                    const i32 sum = F::STEP == 16 ? in.sums[s & 3] : in.sums[(2 * s) & 3] + in.sums[(2 * s + 1) & 3];
                    p -= F::OFFSET * sum;
                }
                out.t[s] = mul(mul(Chunk<F>::d(w, s), r.scales[2 * c + half]), (float)p);
                if (F::WEIGHTED) out.t[s] = add(out.t[s], mul(Chunk<F>::m(w, s), r.weighted[2 * c + half]));
            }
        }
        return out;
    }

#ifdef ANY_ORDER  // only to measure what the order costs: every lane adds up its own terms, at the end the lanes meet
    DEVICE float sum_in_order(float total, const Terms& mine, int chunks) {
        if (lane_id() < chunks && (F::STEP != 256 || lane_id() % 4 == 0))
#pragma unroll
            for (int s = 0; s < N; ++s) total = add(total, mine.t[s]);
        return total;
    }
    DEVICE float whole(float total) { return warp_sum(total); }
#else
    // the sum of a row, from what sum_in_order has made
    DEVICE float whole(float total) { return total; }

    // total + the terms of `chunks` neighbouring chunks (one a lane, from lane 0), in order
    DEVICE float sum_in_order(float total, const Terms& mine, int chunks) {
        if (F::STEP == 256) {
#pragma unroll
            for (int s = 0; s < 8; ++s) {
                const float t = shuffle(mine.t[0], 4 * s);
                if (4 * s < chunks) total = add(total, t);
            }
        } else {
#pragma unroll 4
            for (int lane = 0; lane < 32; ++lane)
#pragma unroll
                for (int s = 0; s < N; ++s) {
                    const float t = shuffle(mine.t[s], lane);
                    if (lane < chunks) total = add(total, t);
                }
        }
        return total;
    }
#endif
};

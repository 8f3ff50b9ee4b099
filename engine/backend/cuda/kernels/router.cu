// The router of a window: norm, f32 logits, and, by the block that ends last, the choice of experts for every token. The
// last block of the grid publishes the normed tokens instead, rounded as the experts' weights (FORMAT) ask for them.
#include "rounding.cuh"
#include "window.cuh"

#ifndef FORMAT
#define FORMAT Q4_K
#define HELD 1
#define EXPERTS_A_LANE 16
#endif

enum Scoring { SOFTMAX, SIGMOID, SELECTED_SOFTMAX };

struct RouterArguments {
    const Window* window;
    const float* x;     // [T, columns]
    const float* norm;  // [columns], or null
    double eps;
    const float* router_x;     // [T, columns] if the router reads something else than the experts, else null
    const float* router_norm;  // its norm's weight, or null
    i64 columns;
    const float* weights;  // [experts, columns]
    const float *bias, *selection_bias;  // [experts], or null
    i64 experts, used, scoring, normalise, groups, groups_used;
    double weight_scale;
    u8* rounded;    // [T] rounded activations
    float* logits;  // [T, experts]
    i32* ids;       // [T, used]
    float* route_weights;
    u32* arrived;
    u64* usage;  // [experts]: routes that chose each
};

static constexpr int MOST = EXPERTS_A_LANE;
static constexpr float LOWEST = -1e38f;  // no rank is lower, and none is NaN: a token takes each expert once, whatever its numbers are

// order of floats as unsigned integers; 0 is below all of them
DEVICE u32 ordered(float v) {
    const u32 bits = float_to_bits(v);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// keys of experts outside the best groups become 0; a group's score is the sum of its two best ranks
DEVICE void keep_best_groups(u32 (&keys)[MOST], const float (&ranks)[MOST], float* room, int experts, int groups, int used) {
    const int size = experts / groups, lane = lane_id();
#pragma unroll
    for (int i = 0; i < MOST; ++i)
        if (lane + 32 * i < experts) room[lane + 32 * i] = ranks[i];
    warp_barrier();
    u32 score = 0;
    if (lane < groups) {
        float first = -INFINITY, second = -INFINITY;
        for (int e = lane * size; e < (lane + 1) * size; ++e) {
            const float v = room[e];
            if (v > first) second = first, first = v;
            else if (v > second) second = v;
        }
        score = ordered(add(first, second));
    }
    u32 kept = 0;
    for (int k = 0; k < used; ++k) {
        const u32 best = warp_greatest(score), who = warp_least(score == best ? lane : 32);
        kept |= 1u << who;
        if (lane == who) score = 0;
    }
#pragma unroll
    for (int i = 0; i < MOST; ++i)
        if (lane + 32 * i < groups * size && !((kept >> ((lane + 32 * i) / size)) & 1)) keys[i] = 0;
}

// ids and weights of one token's experts, best first, ties to the lower id; one warp
DEVICE void choose(const RouterArguments& a, int t, float* room) {
    const int n = (int)a.experts, used = (int)a.used, lane = lane_id();
    float scores[MOST], ranks[MOST];
    u32 keys[MOST];
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < MOST; ++i) {
        const int e = lane + 32 * i;
        scores[i] = -INFINITY;
        if (e >= n) continue;
        scores[i] = a.logits[t * n + e];
        if (a.bias != nullptr) scores[i] = add(scores[i], a.bias[e]);
        top = fmaxf(top, scores[i]);
    }
    if (a.scoring == SOFTMAX) {
        top = warp_max(top);
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < MOST; ++i)
            if (lane + 32 * i < n) scores[i] = expf(sub(scores[i], top)), total = add(total, scores[i]);
        total = warp_sum(total);
#pragma unroll
        for (int i = 0; i < MOST; ++i)
            if (lane + 32 * i < n) scores[i] = divide(scores[i], total);
    } else if (a.scoring == SIGMOID) {
#pragma unroll
        for (int i = 0; i < MOST; ++i)
            if (lane + 32 * i < n) scores[i] = sigmoid(scores[i]);
    }
#pragma unroll
    for (int i = 0; i < MOST; ++i) {
        const int e = lane + 32 * i;
        ranks[i] = scores[i], keys[i] = 0;
        if (e >= n) continue;
        if (a.selection_bias != nullptr) ranks[i] = add(ranks[i], a.selection_bias[e]);
        ranks[i] = ranks[i] > LOWEST ? ranks[i] : LOWEST;
        keys[i] = ordered(ranks[i]);
    }
    if (a.groups > 1) keep_best_groups(keys, ranks, room, n, (int)a.groups, (int)a.groups_used);
    float mine = 0.0f, sum = 0.0f, first = 0.0f;  // lane j holds the weight of route j
    for (int j = 0; j < used; ++j) {
        u32 best = 0, who = 0xFFFFFFFFu;
        float weight = 0.0f;
#pragma unroll
        for (int i = 0; i < MOST; ++i)
            if (keys[i] > best) best = keys[i], who = lane + 32 * i, weight = scores[i];
        const u32 greatest = warp_greatest(best);
        who = warp_least(best == greatest ? who : 0xFFFFFFFFu);
        weight = shuffle(weight, who & 31);
        if (j == 0) first = weight;
        sum = add(sum, weight);
#pragma unroll
        for (int i = 0; i < MOST; ++i)
            if (who == (u32)(lane + 32 * i)) keys[i] = 0;
        if (lane == j) {
            mine = weight;
            a.ids[t * used + j] = who;
            atomic_add(a.usage + who, (u64)1);
        }
    }
    if (a.scoring == SELECTED_SOFTMAX) {
        mine = lane < used ? expf(sub(mine, first)) : 0.0f;
        mine = divide(mine, warp_sum(mine));
    }
    if (a.normalise) mine = divide(mine, fmaxf(sum, 6.103515625e-05f));
    if (lane < used) a.route_weights[t * used + lane] = mul(mine, (float)a.weight_scale);
}

KERNEL(router, 256, RouterArguments) {
    typedef FORMAT F;
    constexpr int AHEAD = 16;  // groups of four weights that a lane loads ahead
    const int lane = lane_id(), columns = (int)a.columns;
    const bool publishes = blockIdx.x == gridDim.x - 1;
    const i64 expert = (i64)blockIdx.x * (blockDim.x / 32) + warp_id();
    const bool has_row = expert < a.experts && !publishes;
    const float* row = a.weights + expert * columns;
    Word4 held[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
        held[i].x = held[i].y = held[i].z = held[i].w = 0;
        if (has_row && 4 * (32 * i + lane) + 3 < columns) held[i] = load_weights16(row + 4 * (32 * i + lane));
    }
    const bool other = a.router_x != nullptr && !publishes;
    const float *source = other ? a.router_x : a.x, *weights = other ? a.router_norm : a.norm;
    Row<HELD> norm;
    if (weights != nullptr) Row<HELD>::load(norm, weights, columns);
    await_previous_kernel();
    let_next_kernel_start();
    DYNAMIC_SHARED(memory);
    SHARED float room[32];
    SHARED u32 place;
    float* normed = (float*)memory;  // [columns]
    const int n = (int)a.window->rows;
    for (int t = 0; t < n; ++t) {
        Row<HELD> x;
        Row<HELD>::load(x, source + (i64)t * columns, columns);
        if (weights != nullptr) Row<HELD>::norm(x, norm, columns, (float)a.eps, room);
        if (publishes) {
            if (a.rounded != nullptr) round_row<F>(x, Rounded<F>::at(a.rounded, (columns + 63) / 64, t));
            continue;
        }
        Row<HELD>::store(x, normed, columns);
        block_barrier();
        if (has_row) {
            float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                const int at = 4 * (32 * i + lane);
                if (at + 3 >= columns) continue;
                const Word4 v = *(const Word4*)(normed + at);
                sums[0] = add(sums[0], mul(bits_to_float(held[i].x), bits_to_float(v.x)));
                sums[1] = add(sums[1], mul(bits_to_float(held[i].y), bits_to_float(v.y)));
                sums[2] = add(sums[2], mul(bits_to_float(held[i].z), bits_to_float(v.z)));
                sums[3] = add(sums[3], mul(bits_to_float(held[i].w), bits_to_float(v.w)));
            }
            float sum = add(add(sums[0], sums[1]), add(sums[2], sums[3]));
            const int rest = columns / 4 < 32 * AHEAD ? columns / 4 * 4 : 128 * AHEAD;
            for (int i = rest + lane; i < columns; i += 32) sum = add(sum, mul(row[i], normed[i]));
            sum = warp_sum(sum);
            if (lane == 0) a.logits[t * a.experts + expert] = sum;
        }
        block_barrier();
    }
    fence();
    block_barrier();
    if (threadIdx.x == 0) place = atomic_add(a.arrived, 1u);
    block_barrier();
    if (place != gridDim.x - 1) return;
    fence();
    if (threadIdx.x == 0) *a.arrived = 0;
    float* mine = (float*)memory + (threadIdx.x / 32) * a.experts;
    for (int t = threadIdx.x / 32; t < n; t += blockDim.x / 32) choose(a, t, mine);
}

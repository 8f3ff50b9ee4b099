// The router of a window: norm, f32 logits, and, by the block that ends last, the choice of experts for every token. The
// first block also publishes the normed tokens, rounded as the experts' weights (FORMAT) ask for them.
#include "rounding.cuh"
#include "window.cuh"

#ifndef FORMAT
#define FORMAT Q4_K
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

static constexpr float LOWEST = -1e38f;  // no rank is lower, and none is NaN: a token takes each expert once, whatever its numbers are
#define MINUS_INFINITY (-INFINITY)

// ranks of experts outside the best groups become minus infinity; a group's score is the sum of its two best ranks
DEVICE void keep_best_groups(float* ranks, int experts, int groups, int used) {
    const int size = experts / groups;
    float score = MINUS_INFINITY;
    if (lane_id() < groups) {
        float first = MINUS_INFINITY, second = MINUS_INFINITY;
        for (int e = lane_id() * size; e < (lane_id() + 1) * size; ++e) {
            const float v = ranks[e];
            if (v > first) second = first, first = v;
            else if (v > second) second = v;
        }
        score = add(first, second);
    }
    bool kept = false;
    for (int k = 0; k < used; ++k) {
        float best = kept ? MINUS_INFINITY : score;
        int who = kept || lane_id() >= groups ? 32 + lane_id() : lane_id();
        for (int m = 16; m > 0; m >>= 1) {
            const float other = shuffle_xor(best, m);
            const int other_who = shuffle_xor(who, m);
            if ((other > best && other_who < 32) || (other == best && other_who < who) || who >= 32) best = other, who = other_who;
        }
        if (who == lane_id()) kept = true;
    }
    const u32 stay = warp_ballot(kept);
    for (int e = lane_id(); e < groups * size; e += 32)
        if (!((stay >> (e / size)) & 1)) ranks[e] = MINUS_INFINITY;
    warp_barrier();
}

// ids and weights of one token's experts, best first, ties to the lower id; one warp, `scores` and `ranks` in shared memory
DEVICE void choose(const RouterArguments& a, int t, float* scores, float* ranks) {
    const int n = (int)a.experts, used = (int)a.used, lane = lane_id();
    float top = MINUS_INFINITY;
    for (int e = lane; e < n; e += 32) {
        float v = a.logits[t * n + e];
        if (a.bias != nullptr) v = add(v, a.bias[e]);
        scores[e] = v;
        top = fmaxf(top, v);
    }
    if (a.scoring == SOFTMAX) {
        top = warp_max(top);
        float total = 0.0f;
        for (int e = lane; e < n; e += 32) {
            scores[e] = expf(sub(scores[e], top));
            total = add(total, scores[e]);
        }
        total = warp_sum(total);
        for (int e = lane; e < n; e += 32) scores[e] = divide(scores[e], total);
    } else if (a.scoring == SIGMOID) {
        for (int e = lane; e < n; e += 32) scores[e] = sigmoid(scores[e]);
    }
    for (int e = lane; e < n; e += 32) {
        float v = scores[e];
        if (a.selection_bias != nullptr) v = add(v, a.selection_bias[e]);
        ranks[e] = v > LOWEST ? v : LOWEST;
    }
    warp_barrier();
    if (a.groups > 1) keep_best_groups(ranks, n, (int)a.groups, (int)a.groups_used);
    float mine = 0.0f, sum = 0.0f, first = 0.0f;  // lane j holds the weight of route j
    for (int j = 0; j < used; ++j) {
        float best = MINUS_INFINITY;
        int who = 1 << 30;
        for (int e = lane; e < n; e += 32)
            if (ranks[e] > best) best = ranks[e], who = e;
        for (int m = 16; m > 0; m >>= 1) {
            const float other = shuffle_xor(best, m);
            const int other_who = shuffle_xor(who, m);
            if (other > best || (other == best && other_who < who)) best = other, who = other_who;
        }
        const float weight = scores[who];
        if (j == 0) first = weight;
        sum = add(sum, weight);
        warp_barrier();
        if (lane == 0) {
            a.ids[t * used + j] = who;
            ranks[who] = MINUS_INFINITY;
            atomic_add(a.usage + who, (u64)1);
        }
        if (lane == j) mine = weight;
        warp_barrier();
    }
    if (a.scoring == SELECTED_SOFTMAX) {
        mine = lane < used ? expf(sub(mine, first)) : 0.0f;
        mine = divide(mine, warp_sum(mine));
    }
    if (a.normalise) mine = divide(mine, fmaxf(sum, 6.103515625e-05f));
    if (lane < used) a.route_weights[t * used + lane] = mul(mine, (float)a.weight_scale);
}

KERNEL(router, 128, RouterArguments) {
    typedef FORMAT F;
    constexpr int HELD = 16;  // groups of four weights that a lane loads ahead
    const int lane = lane_id(), columns = (int)a.columns;
    const i64 expert = (i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const bool has_row = expert < a.experts;
    const float* row = a.weights + expert * columns;
    Word4 held[HELD];
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        held[i].x = held[i].y = held[i].z = held[i].w = 0;
        if (has_row && 4 * (32 * i + lane) + 3 < columns) held[i] = load_weights16(row + 4 * (32 * i + lane));
    }
    await_previous_kernel();
    let_next_kernel_start();
    DYNAMIC_SHARED(memory);
    SHARED float room[32];
    SHARED u32 place;
    float* normed = (float*)memory;  // [columns]
    const int n = (int)a.window->rows;
    const float* source = a.router_x != nullptr ? a.router_x : a.x;
    const float* norm = a.router_x != nullptr ? a.router_norm : a.norm;
    for (int t = 0; t < n; ++t) {
        const float* x = source + (i64)t * columns;
        const float factor = norm != nullptr ? norm_factor(x, columns, (float)a.eps, room) : 1.0f;
        for (int i = threadIdx.x; i < columns; i += blockDim.x) normed[i] = norm != nullptr ? mul(mul(x[i], factor), norm[i]) : x[i];
        block_barrier();
        if (has_row) {
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < HELD; ++i) {
                const int at = 4 * (32 * i + lane);
                if (at + 3 >= columns) continue;
                sum = add(sum, mul(bits_to_float(held[i].x), normed[at]));
                sum = add(sum, mul(bits_to_float(held[i].y), normed[at + 1]));
                sum = add(sum, mul(bits_to_float(held[i].z), normed[at + 2]));
                sum = add(sum, mul(bits_to_float(held[i].w), normed[at + 3]));
            }
            const int rest = columns / 4 < 32 * HELD ? columns / 4 * 4 : 128 * HELD;
            for (int i = rest + lane; i < columns; i += 32) sum = add(sum, mul(row[i], normed[i]));
            sum = warp_sum(sum);
            if (lane == 0) a.logits[t * a.experts + expert] = sum;
        }
        block_barrier();
    }
    if (blockIdx.x == 0 && a.rounded != nullptr)
        for (int t = 0; t < n; ++t) {
            const float* x = a.x + (i64)t * columns;
            const float factor = a.norm != nullptr ? norm_factor(x, columns, (float)a.eps, room) : 1.0f;
            round_row<F>(x, columns, factor, a.norm, Rounded<F>::at(a.rounded, (columns + 63) / 64, t));
        }
    fence();
    block_barrier();
    if (threadIdx.x == 0) place = atomic_add(a.arrived, 1u);
    block_barrier();
    if (place != gridDim.x - 1) return;
    fence();
    if (threadIdx.x == 0) *a.arrived = 0;
    float* scores = (float*)memory + 2 * (threadIdx.x / 32) * a.experts;
    for (int t = threadIdx.x / 32; t < n; t += blockDim.x / 32) choose(a, t, scores, scores + a.experts);
}

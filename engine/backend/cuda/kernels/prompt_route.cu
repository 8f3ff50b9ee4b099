// The router of a prompt: f32 logits, every token's choice of experts, and the plan: routes sorted by expert and cut into
// tiles, on the device. Nothing depends on the order in which blocks run, so the same prompt gives the same plan.
#include "platform.cuh"
#include "window.cuh"

#ifndef TOKENS
#define TOKENS 64  // of a tile, as in prompt_matmul.cu
#endif

struct LogitsArguments {
    const Window* window;
    const float* x;        // [T, columns]
    const float* weights;  // [experts, columns]
    const float* bias;     // [experts], or null
    i64 columns, experts;
    float* logits;  // [T, experts]
};

// A warp takes 8 tokens and 8 experts, its lanes share the columns; a block 16 tokens and 32 experts.
KERNEL(prompt_logits, 256, LogitsArguments) {
    constexpr int N = 8;
    const int lane = lane_id(), warp = threadIdx.x / 32, columns = (int)a.columns, rows = (int)a.window->rows, experts = (int)a.experts;
    const int token = 16 * (int)blockIdx.x + N * (warp / 4), expert = 32 * (int)blockIdx.y + N * (warp % 4);
    await_previous_kernel();
    let_next_kernel_start();
    if (token >= rows || expert >= experts) return;
    float sums[N][N];
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
        for (int j = 0; j < N; ++j) sums[i][j] = 0.0f;
    const float *x[N], *w[N];  // past the end the last one again
#pragma unroll
    for (int i = 0; i < N; ++i) {
        x[i] = a.x + (i64)(token + i < rows ? token + i : rows - 1) * columns;
        w[i] = a.weights + (i64)(expert + i < experts ? expert + i : experts - 1) * columns;
    }
    const int whole = columns % 4 == 0 ? columns : 0;  // rows start where four can be loaded at once
    for (int at = 4 * lane; at < whole; at += 128) {
        float v[N][4];
#pragma unroll
        for (int i = 0; i < N; ++i) *(Word4*)v[i] = *(const Word4*)(x[i] + at);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            float u[4];
            *(Word4*)u = *(const Word4*)(w[j] + at);
#pragma unroll
            for (int i = 0; i < N; ++i)
#pragma unroll
                for (int k = 0; k < 4; ++k) sums[i][j] = fmaf(v[i][k], u[k], sums[i][j]);
        }
    }
    for (int at = whole + lane; at < columns; at += 32)
#pragma unroll
        for (int i = 0; i < N; ++i)
#pragma unroll
            for (int j = 0; j < N; ++j) sums[i][j] = fmaf(x[i][at], w[j][at], sums[i][j]);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        float mine = 0.0f;
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const float sum = warp_sum(sums[i][j]);
            if (lane == j) mine = sum;
        }
        const int e = expert + lane;
        if (lane < N && e < experts && token + i < rows) a.logits[(i64)(token + i) * experts + e] = a.bias != nullptr ? add(mine, a.bias[e]) : mine;
    }
}

#define MINUS_INFINITY bits_to_float(0xFF800000u)
enum Scoring { SOFTMAX, SIGMOID, SELECTED_SOFTMAX };

struct ChooseArguments {
    const Window* window;
    const float* logits;  // [T, experts]
    const float* selection_bias;  // [experts], or null: counts for the choice only
    i64 experts, used, scoring, normalise, groups, groups_used;
    double weight_scale;
    i32* ids;        // [T, used], best first
    float* weights;  // [T, used]
};

// no rank is lower, and none is NaN: a token takes each expert once, whatever its numbers are
static constexpr float LOWEST_RANK = -1e38f, LEAST_SUM = 6.103515625e-05f;

// of the lanes' values the greatest and its index; of equals the lowest index
DEVICE void best_of_warp(float& value, int& index) {
    for (int m = 16; m > 0; m >>= 1) {
        const float other = shuffle_xor(value, m);
        const int other_index = shuffle_xor(index, m);
        if (other > value || (other == value && other_index < index)) value = other, index = other_index;
    }
}

// ranks of experts outside the best groups become minus infinity; a group's score is the sum of its two best ranks
DEVICE void keep_groups(float* ranks, int experts, int groups, int used) {
    const int lane = lane_id(), size = experts / groups;
    float first = MINUS_INFINITY, second = MINUS_INFINITY;
    if (lane < groups)
        for (int e = lane * size; e < (lane + 1) * size; ++e) {
            if (ranks[e] > first) second = first, first = ranks[e];
            else if (ranks[e] > second) second = ranks[e];
        }
    float score = lane < groups ? add(first, second) : MINUS_INFINITY;
    u32 kept = 0;
    for (int k = 0; k < used; ++k) {
        float best = score;
        int who = lane;
        best_of_warp(best, who);
        kept |= 1u << who;
        if (lane == who) score = MINUS_INFINITY;
    }
    warp_barrier();
    for (int e = lane; e < groups * size; e += 32)
        if (!((kept >> (e / size)) & 1)) ranks[e] = MINUS_INFINITY;
    warp_barrier();
}

// a warp a token
KERNEL(prompt_choose, 256, ChooseArguments) {
    DYNAMIC_SHARED(memory);
    const int lane = lane_id(), warp = threadIdx.x / 32, n = (int)a.experts, used = (int)a.used;
    const i64 t = (i64)blockIdx.x * 8 + warp;
    await_previous_kernel();
    let_next_kernel_start();
    if (t >= a.window->rows) return;
    float *scores = (float*)memory + 2 * warp * n, *ranks = scores + n;
    float top = MINUS_INFINITY, total = 0.0f;
    for (int e = lane; e < n; e += 32) {
        scores[e] = a.logits[t * n + e];
        top = fmaxf(top, scores[e]);
    }
    top = warp_max(top);
    for (int e = lane; e < n; e += 32) {
        if (a.scoring == SOFTMAX) scores[e] = expf(sub(scores[e], top));
        if (a.scoring == SIGMOID) scores[e] = sigmoid(scores[e]);
        total = add(total, scores[e]);
    }
    total = warp_sum(total);
    for (int e = lane; e < n; e += 32) {
        if (a.scoring == SOFTMAX) scores[e] = divide(scores[e], total);
        const float rank = a.selection_bias != nullptr ? add(scores[e], a.selection_bias[e]) : scores[e];
        ranks[e] = rank > LOWEST_RANK ? rank : LOWEST_RANK;
    }
    warp_barrier();
    if (a.groups > 1) keep_groups(ranks, n, (int)a.groups, (int)a.groups_used);
    float mine = 0.0f, sum = 0.0f, first = 0.0f;  // lane j holds the weight of route j
    for (int j = 0; j < used; ++j) {
        float best = MINUS_INFINITY;
        int who = n;
        for (int e = lane; e < n; e += 32)
            if (ranks[e] > best) best = ranks[e], who = e;
        best_of_warp(best, who);
        const float weight = scores[who];
        if (j == 0) first = weight;
        sum = add(sum, weight);
        if (lane == j) mine = weight;
        warp_barrier();
        if (lane == 0) a.ids[t * used + j] = who, ranks[who] = MINUS_INFINITY;
        warp_barrier();
    }
    if (a.scoring == SELECTED_SOFTMAX) {
        mine = lane < used ? expf(sub(mine, first)) : 0.0f;
        mine = divide(mine, warp_sum(mine));
    }
    if (a.normalise) mine = divide(mine, sum < LEAST_SUM ? LEAST_SUM : sum);
    if (lane < used) a.weights[t * used + lane] = mul(mine, (float)a.weight_scale);
}

struct PlanArguments {
    const Window* window;
    const i32* ids;  // [T, used]
    i64 experts, used;
    i32* pairs;       // [T * used]: token * used + route, by expert, then as they come
    i32* tiles;       // [T * used / TOKENS + experts, 4]: expert, first pair, pairs, 0
    i32* tile_count;
    u64* usage;  // [experts]: routes that chose each
};

// A block of threads an expert: each counts all routes, finds its own place, and puts its routes there in order.
KERNEL(prompt_plan, 256, PlanArguments) {
    constexpr int MOST = 1024;
    DYNAMIC_SHARED(memory);
    u16* ids = (u16*)memory;  // [T * used]: read once from far away
    SHARED i32 counts[MOST], room[3][8];
    const int lane = lane_id(), warp = threadIdx.x / 32, experts = (int)a.experts, expert = blockIdx.x;
    await_previous_kernel();
    let_next_kernel_start();
    const int n = (int)(a.window->rows * a.used);
    for (int e = threadIdx.x; e < experts; e += 256) counts[e] = 0;
    block_barrier();
#pragma unroll 8
    for (int r = threadIdx.x; r < n; r += 256) ids[r] = (u16)a.ids[r];
    block_barrier();
    for (int r = threadIdx.x; r < n; r += 256) atomic_add(counts + ids[r], 1);
    block_barrier();
    i32 pairs_before = 0, tiles_before = 0, tiles = 0;
    for (int e = threadIdx.x; e < experts; e += 256) {
        const i32 of_expert = (counts[e] + TOKENS - 1) / TOKENS;
        tiles += of_expert;
        if (e < expert) pairs_before += counts[e], tiles_before += of_expert;
    }
    pairs_before = warp_sum(pairs_before), tiles_before = warp_sum(tiles_before), tiles = warp_sum(tiles);
    if (lane == 0) room[0][warp] = pairs_before, room[1][warp] = tiles_before, room[2][warp] = tiles;
    block_barrier();
    pairs_before = tiles_before = tiles = 0;
    for (int w = 0; w < 8; ++w) pairs_before += room[0][w], tiles_before += room[1][w], tiles += room[2][w];
    const i32 count = counts[expert];
    for (int k = threadIdx.x; k < (count + TOKENS - 1) / TOKENS; k += 256) {
        i32* tile = a.tiles + 4 * (tiles_before + k);
        tile[0] = expert, tile[1] = pairs_before + TOKENS * k, tile[2] = count - TOKENS * k < TOKENS ? count - TOKENS * k : TOKENS, tile[3] = 0;
    }
    if (threadIdx.x == 0) {
        if (a.usage != nullptr) a.usage[expert] += (u64)count;
        if (expert == 0) *a.tile_count = tiles;
    }
    block_barrier();

    const int share = (n + 255) / 256 * 32, from = warp * share, to = from + share < n ? from + share : n;  // of a warp
    i32 mine = 0;
    for (int r = from; r < to; r += 32) mine += count_bits(warp_ballot(r + lane < to && ids[r + lane] == expert));
    if (lane == 0) room[0][warp] = mine;
    block_barrier();
    i32 place = pairs_before;
    for (int w = 0; w < warp; ++w) place += room[0][w];
    for (int r = from; r < to; r += 32) {
        const bool chosen = r + lane < to && ids[r + lane] == expert;
        const u32 who = warp_ballot(chosen);
        if (chosen) a.pairs[place + count_bits(who & ((1u << lane) - 1u))] = r + lane;
        place += count_bits(who);
    }
}

struct SumRoutesArguments {
    const Window* window;
    const float* routes;   // [T, used, columns]
    const float* weights;  // [T, used]
    const i32* ids;        // [T, used]
    i64 used, columns;
    const float *factors, *bias;        // of every expert: [experts] and [experts, columns], or null
    const float *shared, *shared_gate;  // [T, columns] and [T], or null
    float* out;      // [T, columns]
    i64 accumulate;  // out += scale * sum
    double scale;
};

// block (256 columns, token); routes are added in their order
KERNEL(sum_routes, 256, SumRoutesArguments) {
    await_previous_kernel();
    let_next_kernel_start();
    const i64 i = (i64)blockIdx.x * 256 + threadIdx.x, t = blockIdx.y;
    if (t >= a.window->rows || i >= a.columns) return;
    float y = 0.0f;
    for (int j = 0; j < a.used; ++j) {
        const i64 route = t * a.used + j;
        float v = a.routes[route * a.columns + i];
        if (a.factors != nullptr) v = mul(v, a.factors[a.ids[route]]);
        if (a.bias != nullptr) v = add(v, a.bias[a.ids[route] * a.columns + i]);
        v = mul(a.weights[route], v);
        y = j == 0 ? v : add(y, v);
    }
    if (a.shared != nullptr) {
        const float gate = a.shared_gate != nullptr ? sigmoid(a.shared_gate[t]) : 1.0f;
        y = add(y, mul(gate, a.shared[t * a.columns + i]));
    }
    float* target = a.out + t * a.columns + i;
    *target = a.accumulate ? add(*target, mul((float)a.scale, y)) : y;
}

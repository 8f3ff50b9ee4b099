// A token drawn from one row of logits, as engine/sampling does it on the host: of the top_k greatest (at most 64) top_p and
// min_p keep some, and a number that depends on seed and position only picks one by the tempered probabilities. Sums are
// double, in the order of the candidates. Nothing sorts the vocabulary: of 1,024 groups of it, only those can hold one of
// the k greatest whose own greatest is among the k greatest of those.
#include "logits.cuh"
#include "ranks.cuh"
#include "window.cuh"

#ifndef VOCABULARY
#define VOCABULARY 151936
#endif

static constexpr int GROUPS = 1024, GROUP = (VOCABULARY + GROUPS - 1) / GROUPS, MOST = 64;

// how to draw; the host writes it for every request
struct Draw {
    i64 top_k;  // 1 ... 64
    double top_p, log_min_p, temperature;
    u64 seed;
};

struct GreatestArguments {
    const float* logits;  // [vocabulary]
    u64* greatest;        // [GROUPS], as `ranked` says; 0 for a group without a token
};

// a warp takes a group
KERNEL(greatest_of_groups, 256, GreatestArguments) {
    await_previous_kernel();
    let_next_kernel_start();
    const int group = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    u64 best = 0;
    for (int i = lane_id(); i < GROUP; i += 32) {
        const i64 token = (i64)group * GROUP + i;
        const u64 key = token < VOCABULARY ? ranked(a.logits[token], token) : 0;
        best = key > best ? key : best;
    }
    for (int m = 16; m > 0; m >>= 1) {
        const u64 other = shuffle_xor(best, m);
        best = other > best ? other : best;
    }
    if (lane_id() == 0) a.greatest[group] = best;
}

// Philox4x32-10 with counter = position and key = seed: a number in [0, 1) of 53 bits
DEVICE double uniform_number(u64 seed, u64 position) {
    u32 c0 = (u32)position, c1 = (u32)(position >> 32), c2 = 0, c3 = 0, k0 = (u32)seed, k1 = (u32)(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const u64 first = (u64)0xD2511F53u * c0, second = (u64)0xCD9E8D57u * c2;
        c0 = (u32)(second >> 32) ^ c1 ^ k0, c1 = (u32)second;
        c2 = (u32)(first >> 32) ^ c3 ^ k1, c3 = (u32)first;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return (double)(((u64)c1 << 32 | c0) >> 11) * (1.0 / 9007199254740992.0);
}

// the value that `ranked` made a key of
DEVICE float value_of(u64 key) {
    const u32 bits = (u32)(key >> 32);
    return bits_to_float(bits & 0x80000000u ? bits & 0x7FFFFFFFu : ~bits);
}

struct DrawArguments {
    const Window* window;
    const Draw* draw;
    const float* logits;
    const u64* greatest;
    u64* best;  // the greatest logit; becomes the drawn token's, unless a logit was no finite number
};

// One block.
KERNEL(draw_token, GROUPS, DrawArguments) {
    SHARED u32 histogram[256], n_groups, n_winners;
    SHARED int groups[MOST];
    SHARED u64 winners[MOST], ordered[MOST];
    SHARED double sums[MOST], tempered[MOST];
    await_previous_kernel();
    let_next_kernel_start();
    if (a.best[0] == ~(u64)0) return;
    const int wanted = (int)a.draw->top_k, thread = threadIdx.x;
    if (thread == 0) n_groups = n_winners = 0;
    const u64 own[1] = {a.greatest[thread]};
    const u64 bound = nth_greatest(own, wanted, histogram);
    if (own[0] != 0 && own[0] >= bound) groups[atomic_add(&n_groups, 1u)] = thread;  // at most `wanted`: keys differ
    block_barrier();
    constexpr int SLOTS = MOST * GROUP / GROUPS + 1;
    u64 held[SLOTS];
#pragma unroll
    for (int s = 0; s < SLOTS; ++s) {
        const int place = thread + s * GROUPS, group = place / GROUP;
        held[s] = 0;
        if (group >= (int)n_groups) continue;
        const i64 token = (i64)groups[group] * GROUP + place % GROUP;
        const u64 key = token < VOCABULARY ? ranked(a.logits[token], token) : 0;
        held[s] = key >= bound ? key : 0;
    }
    const u64 least = nth_greatest(held, wanted, histogram);
#pragma unroll
    for (int s = 0; s < SLOTS; ++s)
        if (held[s] != 0 && held[s] >= least) winners[atomic_add(&n_winners, 1u)] = held[s];
    block_barrier();
    const int n = (int)n_winners;
    if (thread < n) {
        int place = 0;
        for (int i = 0; i < n; ++i) place += winners[i] > winners[thread];
        ordered[place] = winners[thread];
    }
    block_barrier();
    const double top = value_of(ordered[0]);
    if (thread < n) {
        const double below = (double)value_of(ordered[thread]) - top;
        sums[thread] = exp(below), tempered[thread] = exp(below / a.draw->temperature);
    }
    block_barrier();
    if (thread != 0) return;
    int kept = n;
    if (a.draw->top_p < 1.0) {
        for (int i = 1; i < n; ++i) sums[i] += sums[i - 1];
        const double enough = a.draw->top_p * sums[n - 1];
        kept = 1;
        while (kept < n && sums[kept - 1] < enough) ++kept;
    }
    while (kept > 1 && (double)value_of(ordered[kept - 1]) < top + a.draw->log_min_p) --kept;
    for (int i = 1; i < kept; ++i) tempered[i] += tempered[i - 1];
    const double drawn = uniform_number(a.draw->seed, (u64)(a.window->position + a.window->rows)) * tempered[kept - 1];
    int picked = 0;
    while (picked + 1 < kept && tempered[picked] <= drawn) ++picked;
    a.best[0] = ordered[picked];
}

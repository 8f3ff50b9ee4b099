// Which of many numbers are the greatest, without sorting them: the n-th greatest is found digit by digit, from histograms.
#pragma once
#include "platform.cuh"

// The digit at which the count from the greatest one down reaches `wanted`, and in `greater` how many numbers have a greater
// one. By one warp, all lanes; bins: a multiple of 32. If there are fewer numbers, the digit is 0.
DEVICE int digit_of_nth(const u32* histogram, int bins, i64 wanted, i64& greater) {
    const int lane = lane_id(), share = bins / 32, top = bins - 1 - lane * share;
    i64 mine = 0;
    for (int i = 0; i < share; ++i) mine += histogram[top - i];
    i64 through = mine;  // of this lane and those before it
    for (int step = 1; step < 32; step *= 2) {
        const i64 other = shuffle(through, lane >= step ? lane - step : lane);
        if (lane >= step) through += other;
    }
    const u32 reached = warp_ballot(through >= wanted);
    const int owner = reached != 0 ? 31 - leading_zeros(reached & (~reached + 1)) : 31;
    int digit = top;
    i64 above = through - mine;
    for (int i = 0; i + 1 < share && above + histogram[digit] < wanted; ++i) above += histogram[digit], --digit;
    greater = shuffle(above, owner);
    return shuffle(digit, owner);
}

// The n-th greatest of the numbers that the block's threads hold, SLOTS each, all different but for zeros, which are none;
// 0 if there are fewer. 256 bins of room.
template <int SLOTS> DEVICE u64 nth_greatest(const u64 (&held)[SLOTS], i64 n, u32* histogram) {
    SHARED i32 found_digit;
    SHARED i64 found_greater;
    u64 prefix = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += blockDim.x) histogram[i] = 0;
        block_barrier();
#pragma unroll
        for (int s = 0; s < SLOTS; ++s)
            if (held[s] != 0 && (shift == 56 || held[s] >> (shift + 8) == prefix)) atomic_add(histogram + (held[s] >> shift & 255), 1u);
        block_barrier();
        if (threadIdx.x < 32) {
            i64 greater;
            const int digit = digit_of_nth(histogram, 256, n, greater);
            if (threadIdx.x == 0) found_digit = digit, found_greater = greater;
        }
        block_barrier();
        prefix = prefix << 8 | (u64)found_digit;
        n -= found_greater;
        block_barrier();
    }
    return prefix;
}

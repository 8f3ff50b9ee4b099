// Small kernels that say whether threads on the processor behave as a card's, and what is found when a kernel is wrong.
#include "platform.cuh"

struct RowsArguments { const float* x; float* out; i64 width; };
struct WordsArguments { const u32* x; u32* out; i64 n; };
struct FragmentArguments { const u32* a; const u32* b; u32* c; };
struct CopyArguments { const Word4* x; Word4* out; i64 wait; };

// --- right ---
KERNEL(sum_rows, 256, RowsArguments) {
    SHARED float parts[8];
    float v = 0.0f;
    for (i64 i = threadIdx.x; i < a.width; i += blockDim.x) v += a.x[blockIdx.x * a.width + i];
    v = warp_sum(v);
    if (lane_id() == 0) parts[threadIdx.x / 32] = v;
    block_barrier();
    if (threadIdx.x == 0) {
        for (u32 w = 1; w < blockDim.x / 32; ++w) v += parts[w];
        a.out[blockIdx.x] = v;
    }
}

// neighbours hand values on, a round at a time
KERNEL(rotate, 256, WordsArguments) {
    DYNAMIC_SHARED(memory);
    u32* held = (u32*)memory;
    u32 v = a.x[threadIdx.x];
    for (i64 round = 0; round < a.n; ++round) {
        held[threadIdx.x] = v;
        block_barrier();
        v = held[(threadIdx.x + 1) % blockDim.x];
        block_barrier();
    }
    a.out[threadIdx.x] = v;
}

// threads from n on leave at once; the others go on meeting
KERNEL(leave_early, 96, WordsArguments) {
    if (threadIdx.x >= a.n) return;
    const u32 there = warp_ballot(true);
    block_barrier();
    const u32 odd = warp_ballot(threadIdx.x % 2);
    block_barrier();
    a.out[threadIdx.x] = there ^ odd;
}

KERNEL(exchange, 32, WordsArguments) {
    const u32 v = a.x[lane_id()];
    u32* out = a.out + 6 * lane_id();
    out[0] = shuffle(v, 5);
    out[1] = shuffle_xor(v, 9);
    out[2] = warp_ballot(v & 1);
    out[3] = (u32)warp_sum((i32)v);
    out[4] = warp_greatest(v);
    out[5] = warp_least(v);
}

KERNEL(indices, 64, WordsArguments) {
    const u32 block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    if (threadIdx.x == 0) a.out[atomic_add((u32*)a.x, 1u)] = block;
}

KERNEL(convert, 64, WordsArguments) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n) return;
    a.out[2 * i] = float_to_half(bits_to_float(a.x[i]));
    a.out[2 * i + 1] = float_to_bits(half_to_float((u16)(a.x[i] >> 16)));
}

KERNEL(integers, 64, WordsArguments) {
    const u32 *x = a.x + 3 * threadIdx.x;
    u32* out = a.out + 5 * threadIdx.x;
    out[0] = (u32)dot4(x[0], x[1], (i32)x[2]);
    out[1] = (u32)dot4_signed(x[0], x[1], (i32)x[2]);
    out[2] = permute_bytes(x[0], x[1], x[2] & 0x7777);
    out[3] = count_bits(x[0]);
    out[4] = leading_zeros(x[0] >> (threadIdx.x % 33 == 32 ? 31 : threadIdx.x % 33));
}

#define MULTIPLY(name, C)                                                      \
    KERNEL(name##_fragments, 32, FragmentArguments) {                          \
        const int lane = lane_id();                                            \
        u32 left[4], right[2];                                                 \
        C c[4];                                                                \
        for (int i = 0; i < 4; ++i) left[i] = a.a[4 * lane + i];               \
        for (int i = 0; i < 2; ++i) right[i] = a.b[2 * lane + i];              \
        for (int i = 0; i < 4; ++i) c[i] = ((C*)a.c)[4 * lane + i];            \
        name(c, left, right);                                                  \
        for (int i = 0; i < 4; ++i) ((C*)a.c)[4 * lane + i] = c[i];            \
    }
MULTIPLY(mma_u8s8, i32)
MULTIPLY(mma_s8s8, i32)
MULTIPLY(mma_f16, float)

// two groups of copies; wait: 0 for none of them, 1 for the first, 2 for both
KERNEL(copy, 32, CopyArguments) {
    SHARED Word4 held[64];
    copy16_async(held + threadIdx.x, a.x + threadIdx.x);
    copy_async_commit();
    copy16_async(held + 32 + threadIdx.x, a.x + 32 + threadIdx.x);
    copy_async_commit();
    if (a.wait == 1) copy_async_wait<1>();
    if (a.wait == 2) copy_async_wait<0>();
    block_barrier();
    a.out[threadIdx.x] = held[threadIdx.x], a.out[32 + threadIdx.x] = held[32 + threadIdx.x];
}

// what shared memory holds when a block begins
KERNEL(untouched, 32, WordsArguments) {
    SHARED u32 fixed[32];
    DYNAMIC_SHARED(memory);
    a.out[64 * blockIdx.x + threadIdx.x] = fixed[threadIdx.x];
    a.out[64 * blockIdx.x + 32 + threadIdx.x] = ((u32*)memory)[threadIdx.x];
    fixed[threadIdx.x] = ((u32*)memory)[threadIdx.x] = 7;
}

KERNEL(awaits, 32, WordsArguments) {
    if (a.n) await_previous_kernel();
}

// adds up what the kernel before has written; n: 1 reads x, 2 writes out before that is awaited
KERNEL(reads_early, 32, WordsArguments) {
    u32 v = a.n & 1 ? a.x[lane_id()] : 0;
    if (a.n & 2) a.out[lane_id()] = v;
    await_previous_kernel();
    a.out[lane_id()] = v + a.x[lane_id()];
}

// --- wrong ---
KERNEL(barriers_apart, 64, WordsArguments) {
    if (threadIdx.x < a.n) block_barrier();
    else block_barrier();
}

KERNEL(warp_and_block, 64, WordsArguments) {
    if (threadIdx.x == 3) block_barrier();
    warp_barrier();
    block_barrier();
}

KERNEL(absent_lane, 32, WordsArguments) {
    if (threadIdx.x >= 20) return;
    a.out[threadIdx.x] = shuffle(threadIdx.x, 25);
}

// right only if threads run one after the other as they are counted
KERNEL(no_barrier, 64, WordsArguments) {
    SHARED u32 held;
    if (threadIdx.x == 0) held = 5;
    a.out[threadIdx.x] = held;
}

KERNEL(write_global, 32, WordsArguments) { if (threadIdx.x == 7) a.out[a.n] = 1; }
KERNEL(read_global, 32, WordsArguments) { if (threadIdx.x == 7) a.out[0] = a.x[a.n]; }
KERNEL(write_fixed, 32, WordsArguments) {
    SHARED u32 held[32];
    held[threadIdx.x + a.n] = 1;
    block_barrier();
    a.out[threadIdx.x] = held[threadIdx.x];
}
KERNEL(write_dynamic, 32, WordsArguments) {
    DYNAMIC_SHARED(memory);
    memory[a.n] = 1;
}
KERNEL(odd_address, 32, WordsArguments) { a.out[threadIdx.x] = *(const u32*)((const u8*)a.x + a.n); }
KERNEL(divide_by, 32, WordsArguments) { a.out[threadIdx.x] = 5 / (u32)a.n; }

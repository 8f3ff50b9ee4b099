// Everything that kernels/platform.cuh promises, for the processor: the same sources run without a card, slowly, so that
// tests can say what they compute.
//
// Blocks run one after the other. Every thread of a block is a fiber; the lanes of a warp meet at shuffles and warp barriers,
// all threads at block barriers. Threads that wait for each other for ever are reported. Shared memory is filled with a
// pattern before each block, asynchronous copies happen only when they are waited for. x86-64.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sys/mman.h>
#include <vector>

struct alignas(16) Word4 { u32 x, y, z, w; };
struct Dim3 { u32 x, y, z; };

namespace on_cpu {

static constexpr int WARP = 32, MOST_THREADS = 1024, STACK = 256 << 10;
enum Waiting { NOTHING, FOR_WARP, FOR_BLOCK, ENDED };

struct Copy { void* to; const void* from; };
struct Fiber {
    void* stack_pointer = nullptr;
    Waiting waiting = NOTHING;
    int turn = 0;  // parity of the lane's meetings: two sets of slots, since no lane can be two meetings ahead
    Dim3 thread;
    std::vector<Copy> open;
    std::vector<std::vector<Copy>> groups;
};
struct Warp {
    alignas(16) u8 slots[2][WARP][64];
    bool present[WARP];
};

struct Machine {
    Fiber fibers[MOST_THREADS];
    Warp warps[MOST_THREADS / WARP];
    Fiber* current = nullptr;
    Dim3 block, grid, size;
    void* scheduler_stack = nullptr;
    u8* stacks = nullptr;
    std::function<void()> body;
    u8* dynamic_shared = nullptr;
    const char* kernel = "";
};
static Machine machine;

// save what a call must keep, change stacks, and go on where the other one stopped
__attribute__((naked, noinline)) static void change_stack(void** /*from*/, void* /*to*/) {
    asm volatile(
        "pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15\n"
        "movq %rsp, (%rdi)\n"
        "movq %rsi, %rsp\n"
        "popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp\n"
        "ret\n");
}
static void pause(Waiting why) {
    machine.current->waiting = why;
    change_stack(&machine.current->stack_pointer, machine.scheduler_stack);
}
static void fiber_main() {
    machine.body();
    pause(ENDED);
    abort();
}
static void start_fiber(int i) {
    u64* top = (u64*)(machine.stacks + (size_t)(i + 1) * STACK);
    *--top = 0;                  // keeps the stack as a call would have it
    *--top = (u64)fiber_main;    // where change_stack returns to
    for (int r = 0; r < 6; ++r) *--top = 0;
    Fiber& f = machine.fibers[i];
    f.stack_pointer = top, f.waiting = NOTHING, f.turn = 0;
    f.open.clear(), f.groups.clear();
}
static void resume(int i) {
    machine.current = &machine.fibers[i];
    change_stack(&machine.scheduler_stack, machine.fibers[i].stack_pointer);
}

// runs one block; false if its threads wait for each other for ever
static bool run_block(int threads) {
    for (int i = 0; i < threads; ++i) start_fiber(i);
    const int warps = (threads + WARP - 1) / WARP;
    for (;;) {
        int at_barrier = 0, ended = 0;
        for (int w = 0; w < warps; ++w) {
            const int first = w * WARP, last = first + WARP < threads ? first + WARP : threads;
            for (;;) {  // until no lane of the warp can go on
                for (int i = first; i < last; ++i)
                    if (machine.fibers[i].waiting == NOTHING) resume(i);
                int met = 0, others = 0;
                for (int i = first; i < last; ++i) {
                    met += machine.fibers[i].waiting == FOR_WARP;
                    others += machine.fibers[i].waiting == FOR_BLOCK;
                    machine.warps[w].present[i - first] = machine.fibers[i].waiting == FOR_WARP;
                }
                if (met == 0) break;
                if (others != 0) {
                    fprintf(stderr, "%s: block (%u, %u, %u): some lanes of warp %d are at a meeting of the warp, others at a barrier of the block\n",
                            machine.kernel, machine.block.x, machine.block.y, machine.block.z, w);
                    return false;
                }
                for (int i = first; i < last; ++i)
                    if (machine.fibers[i].waiting == FOR_WARP) machine.fibers[i].waiting = NOTHING;
            }
            for (int i = first; i < last; ++i) {
                at_barrier += machine.fibers[i].waiting == FOR_BLOCK;
                ended += machine.fibers[i].waiting == ENDED;
            }
        }
        if (ended == threads) return true;
        if (at_barrier + ended != threads) {
            fprintf(stderr, "%s: block (%u, %u, %u): stuck\n", machine.kernel, machine.block.x, machine.block.y, machine.block.z);
            return false;
        }
        for (int i = 0; i < threads; ++i)
            if (machine.fibers[i].waiting == FOR_BLOCK) machine.fibers[i].waiting = NOTHING;
    }
}

// 0, or 1: threads stuck, 2: written behind the shared memory
template <class F> static int run_grid(const char* name, const u32* grid, u32 threads, u32 shared_bytes, u32 order, F body) {
    static constexpr u32 GUARD = 4096;
    if (machine.stacks == nullptr)
        machine.stacks = (u8*)mmap(nullptr, (size_t)MOST_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    machine.kernel = name;
    machine.grid = {grid[0], grid[1], grid[2]}, machine.size = {threads, 1, 1};
    for (u32 i = 0; i < threads; ++i) machine.fibers[i].thread = {i, 0, 0};
    machine.body = body;
    machine.dynamic_shared = (u8*)aligned_alloc(128, (shared_bytes + GUARD + 127) / 128 * 128);
    const u64 blocks = (u64)grid[0] * grid[1] * grid[2];
    int result = 0;
    for (u64 k = 0; k < blocks && result == 0; ++k) {
        const u64 b = order % 2 ? blocks - 1 - k : k;  // two orders find what depends on one
        machine.block = {(u32)(b % grid[0]), (u32)(b / grid[0] % grid[1]), (u32)(b / grid[0] / grid[1])};
        memset(machine.dynamic_shared, 0xDB, shared_bytes + GUARD);
        if (!run_block(threads)) result = 1;
        for (u32 i = 0; i < GUARD; ++i)
            if (machine.dynamic_shared[shared_bytes + i] != 0xDB && result == 0) result = 2;
    }
    free(machine.dynamic_shared);
    machine.dynamic_shared = nullptr;
    return result;
}

static Warp& my_warp() { return machine.warps[machine.current->thread.x / WARP]; }
// what every lane of the warp brings to a meeting, in slots that stay until the one after the next
template <class V> static u8 (*meet(const V& mine))[64] {
    static_assert(sizeof(V) <= 64);
    const int turn = machine.current->turn;
    machine.current->turn ^= 1;
    memcpy(my_warp().slots[turn][machine.current->thread.x % WARP], &mine, sizeof(V));
    pause(FOR_WARP);
    return my_warp().slots[turn];
}

}  // namespace on_cpu

#define DEVICE static inline
#define KERNEL(name, threads, Arguments)                                                                                 \
    static void name##_body(const Arguments& a);                                                                         \
    extern "C" int name(const u32* grid, u32 n, u32 shared_bytes, u32 order, const Arguments* arguments) {               \
        const Arguments held = *arguments;                                                                               \
        if (n > (threads)) return 3;                                                                                     \
        return on_cpu::run_grid(#name, grid, n, shared_bytes, order, [&held] { name##_body(held); });                    \
    }                                                                                                                    \
    static void name##_body(const Arguments& a)
#define DYNAMIC_SHARED(name) u8* name = on_cpu::machine.dynamic_shared
#define SHARED alignas(16) static
#define threadIdx (on_cpu::machine.current->thread)
#define blockIdx (on_cpu::machine.block)
#define blockDim (on_cpu::machine.size)
#define gridDim (on_cpu::machine.grid)

DEVICE int lane_id() { return threadIdx.x & 31; }
template <class V> DEVICE V shuffle(V v, int lane) {
    auto slots = on_cpu::meet(v);
    V other;
    memcpy(&other, slots[lane & 31], sizeof(V));
    return other;
}
template <class V> DEVICE V shuffle_xor(V v, int mask) { return shuffle(v, lane_id() ^ mask); }
DEVICE u32 warp_ballot(bool b) {
    const u32 mine = b;
    auto slots = on_cpu::meet(mine);
    u32 all = 0;
    for (int i = 0; i < 32; ++i)
        if (on_cpu::my_warp().present[i] && slots[i][0]) all |= 1u << i;
    return all;
}
DEVICE void warp_barrier() { on_cpu::pause(on_cpu::FOR_WARP); }
DEVICE void block_barrier() { on_cpu::pause(on_cpu::FOR_BLOCK); }

DEVICE i32 dot4(u32 codes, u32 x, i32 c) {
    for (int i = 0; i < 4; ++i) c += (i32)((codes >> (8 * i)) & 255u) * (i32)(i8)(x >> (8 * i));
    return c;
}
DEVICE i32 dot4_signed(u32 a, u32 b, i32 c) {
    for (int i = 0; i < 4; ++i) c += (i32)(i8)(a >> (8 * i)) * (i32)(i8)(b >> (8 * i));
    return c;
}
DEVICE u32 permute_bytes(u32 a, u32 b, u32 selector) {
    const u64 both = (u64)b << 32 | a;
    u32 out = 0;
    for (int i = 0; i < 4; ++i) {
        const u32 s = (selector >> (4 * i)) & 15;
        u32 byte = (u32)(both >> (8 * (s & 7))) & 255u;
        if (s & 8) byte = byte & 0x80 ? 255 : 0;
        out |= byte << (8 * i);
    }
    return out;
}
DEVICE int count_bits(u32 v) { return __builtin_popcount(v); }
DEVICE int leading_zeros(u32 v) { return v ? __builtin_clz(v) : 32; }

DEVICE float mul(float x, float y) { return x * y; }
DEVICE float add(float x, float y) { return x + y; }
DEVICE float sub(float x, float y) { return x - y; }
DEVICE float divide(float x, float y) { return x / y; }
DEVICE float round_even(float x) { return std::nearbyint(x); }
DEVICE float bits_to_float(u32 v) { float f; memcpy(&f, &v, 4); return f; }
DEVICE u32 float_to_bits(float f) { u32 v; memcpy(&v, &f, 4); return v; }
DEVICE float half_to_float(u16 h) {
    const u32 sign = (u32)(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
    if (exponent == 31) return bits_to_float(sign | 0x7F800000u | fraction << 13);
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)fraction * 0x1p-24f;
    return bits_to_float(sign | (exponent + 112) << 23 | fraction << 13);
}
DEVICE u16 float_to_half(float f) {
    const u32 bits = float_to_bits(f), sign = (bits >> 16) & 0x8000;
    u32 size = bits & 0x7FFFFFFFu;
    if (size > 0x7F800000u) return 0x7FFF;
    if (size >= 0x477FF000u) return sign | 0x7C00;
    if (size < 0x38800000u) return sign | (u32)std::nearbyint(bits_to_float(size) * 0x1p24f);
    size += 0xFFF + ((size >> 13) & 1);
    return sign | (size - 0x38000000u) >> 13;
}
DEVICE float rsqrtf(float x) { return 1.0f / sqrtf(x); }
#define __expf(x) expf(x)
#define __fdividef(x, y) ((x) / (y))

DEVICE Word4 load_weights16(const void* p) {
    if ((u64)p % 16) fprintf(stderr, "%s: 16 bytes at an odd address\n", on_cpu::machine.kernel), abort();
    return *(const Word4*)p;
}
DEVICE void prefetch_l2(const void*) {}
DEVICE void fence() {}
DEVICE void fence_system() {}
template <class V> DEVICE V atomic_add(V* p, V v) { const V old = *p; *p = old + v; return old; }
DEVICE u64 atomic_max(u64* p, u64 v) { const u64 old = *p; if (v > old) *p = v; return old; }
DEVICE void copy16_async(void* shared, const void* global) {
    if ((u64)shared % 16 || (u64)global % 16) fprintf(stderr, "%s: 16 bytes at an odd address\n", on_cpu::machine.kernel), abort();
    on_cpu::machine.current->open.push_back({shared, global});
}
DEVICE void copy_async_commit() {
    on_cpu::machine.current->groups.push_back(on_cpu::machine.current->open);
    on_cpu::machine.current->open.clear();
}
template <int N> DEVICE void copy_async_wait() {
    auto& groups = on_cpu::machine.current->groups;
    while ((int)groups.size() > N) {
        for (auto& copy : groups.front()) memcpy(copy.to, copy.from, 16);
        groups.erase(groups.begin());
    }
}

namespace on_cpu {
struct Fragments { u32 a[4], b[2]; };
// c[i] += sum over k of A[row, k] * B[k, column]; `product` multiplies one pair of words
template <class C, class F> static void multiply_fragments(C (&c)[4], const u32 (&a)[4], const u32 (&b)[2], F product) {
    Fragments mine;
    memcpy(mine.a, a, 16), memcpy(mine.b, b, 8);
    auto slots = meet(mine);
    const int group = lane_id() / 4, member = lane_id() % 4;
    for (int i = 0; i < 4; ++i) {
        const int row = group + 8 * (i / 2), column = 2 * member + i % 2;
        for (int part = 0; part < 2; ++part)
            for (int k = 0; k < 4; ++k) {
                Fragments left, right;
                memcpy(&left, slots[4 * (row % 8) + k], sizeof left);
                memcpy(&right, slots[4 * column + k], sizeof right);
                c[i] = product(left.a[2 * part + row / 8], right.b[part], c[i]);
            }
    }
}
}  // namespace on_cpu

DEVICE void mma_u8s8(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) { on_cpu::multiply_fragments(c, a, b, dot4); }
DEVICE void mma_s8s8(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) { on_cpu::multiply_fragments(c, a, b, dot4_signed); }
DEVICE void mma_f16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    on_cpu::multiply_fragments(c, a, b, [](u32 x, u32 y, float sum) {
        return sum + half_to_float((u16)x) * half_to_float((u16)y) + half_to_float((u16)(x >> 16)) * half_to_float((u16)(y >> 16));
    });
}

DEVICE void let_next_kernel_start() {}
DEVICE void await_previous_kernel() {}

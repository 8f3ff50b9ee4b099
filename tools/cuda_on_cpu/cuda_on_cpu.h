// Everything that kernels/platform.cuh promises, for the processor: the same sources run without a card, slowly, so that
// tests can say what they compute. machine.h says how threads run; here are the intrinsics.
#pragma once
#include <cmath>
#include <cstdint>
#include "machine.h"

struct alignas(16) Word4 { u32 x, y, z, w; };

#define DEVICE static inline
// A function for the host: 0, or 1 when there is a report. seed: see on_cpu::Order; dependent: the kernel must await the one
// before; closed: what that one uses.
#define KERNEL(name, threads, Arguments)                                                                                      \
    static void name##_body(const Arguments& a);                                                                              \
    extern "C" int name(const u32* grid, u32 n, u32 shared_bytes, const Arguments* arguments, u32 seed, u32 dependent,        \
                        const on_cpu::Closed* closed, u32 n_closed) {                                                         \
        const Arguments held = *arguments;                                                                                    \
        return on_cpu::run_grid(grid, n, threads, shared_bytes, seed, dependent, closed, n_closed, [&held] { name##_body(held); }); \
    }                                                                                                                         \
    static void name##_body(const Arguments& a)
#define DYNAMIC_SHARED(name) u8* name = on_cpu::machine.dynamic_shared
#define SHARED alignas(16) static thread_local
#define threadIdx (on_cpu::machine.current->thread)
#define blockIdx (on_cpu::machine.block)
#define blockDim (on_cpu::machine.size)
#define gridDim (on_cpu::machine.grid)

// --- within a warp ---
DEVICE int warp_id() { return threadIdx.x / 32; }
DEVICE int lane_id() { return threadIdx.x & 31; }
template <class V> DEVICE V shuffle(V v, int lane, on_cpu::Site site = HERE) {
    auto slots = on_cpu::meet(v, site);
    on_cpu::must_be_present(lane & 31, site);
    V other;
    memcpy(&other, slots[lane & 31], sizeof(V));
    return other;
}
template <class V> DEVICE V shuffle_xor(V v, int mask, on_cpu::Site site = HERE) { return shuffle(v, lane_id() ^ mask, site); }
DEVICE u32 warp_ballot(bool b, on_cpu::Site site = HERE) {
    auto slots = on_cpu::meet(b, site);
    u32 all = 0;
    for (int i = 0; i < 32; ++i)
        if (on_cpu::my_warp().present[i] && slots[i][0]) all |= 1u << i;
    return all;
}
DEVICE u32 warp_greatest(u32 v, on_cpu::Site site = HERE) {
    auto slots = on_cpu::meet(v, site);
    for (int i = 0; i < 32; ++i) {
        const u32 other = *(const u32*)slots[i];
        if (on_cpu::my_warp().present[i] && other > v) v = other;
    }
    return v;
}
DEVICE u32 warp_least(u32 v, on_cpu::Site site = HERE) { return ~warp_greatest(~v, site); }
DEVICE void warp_barrier(on_cpu::Site site = HERE) { on_cpu::pause(on_cpu::AT_WARP, site); }
DEVICE void block_barrier(on_cpu::Site site = HERE) { on_cpu::pause(on_cpu::AT_BLOCK, site); }

// --- integers ---
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

// --- floats ---
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

// --- memory ---
namespace on_cpu {
static void must_be_aligned(const void* p, Site site) {
    if ((u64)p % 16) fail("16 bytes at an odd address at %s:%d", name_of(site.file), site.line);
}
}  // namespace on_cpu
DEVICE Word4 load_weights16(const void* p, on_cpu::Site site = HERE) {
    on_cpu::must_be_aligned(p, site);
    return *(const Word4*)p;
}
DEVICE void prefetch_l2(const void*) {}
DEVICE void fence() {}
DEVICE void fence_system() {}
template <class V> DEVICE V atomic_add(V* p, V v) { const V old = *p; *p = old + v; return old; }
DEVICE u64 atomic_max(u64* p, u64 v) { const u64 old = *p; if (v > old) *p = v; return old; }
// the copy happens when it is waited for; until then nobody can rely on what was there before either
DEVICE void copy16_async(void* shared, const void* global, on_cpu::Site site = HERE) {
    on_cpu::must_be_aligned(shared, site), on_cpu::must_be_aligned(global, site);
    memset(shared, on_cpu::PATTERN, 16);
    on_cpu::machine.current->open.push_back({shared, global});
}
DEVICE void copy_async_commit() {
    on_cpu::Fiber& f = *on_cpu::machine.current;
    f.groups.push_back(std::move(f.open));
    f.open.clear();
}
template <int N> DEVICE void copy_async_wait() {
    auto& groups = on_cpu::machine.current->groups;
    while ((int)groups.size() > N) {
        for (auto& copy : groups.front()) memcpy(copy.to, copy.from, 16);
        groups.erase(groups.begin());
    }
}

// --- tensor cores ---
namespace on_cpu {
struct Fragments { u32 a[4], b[2]; };
// c[i] += sum over k of A[row, k] * B[k, column]; `product` multiplies one pair of words
template <class C, class F> static void multiply_fragments(C (&c)[4], const u32 (&a)[4], const u32 (&b)[2], Site site, F product) {
    Fragments mine;
    memcpy(mine.a, a, 16), memcpy(mine.b, b, 8);
    auto slots = meet(mine, site);
    for (u32 lane = 0; lane < WARP; ++lane) must_be_present(lane, site);
    const int group = lane_id() / 4, member = lane_id() % 4;
    for (int i = 0; i < 4; ++i) {
        const int row = group + 8 * (i / 2), column = 2 * member + i % 2;
        for (int part = 0; part < 2; ++part)
            for (int k = 0; k < 4; ++k) {
                const u32 *left = (const u32*)slots[4 * (row % 8) + k], *right = (const u32*)slots[4 * column + k];
                c[i] = product(left[2 * part + row / 8], right[4 + part], c[i]);
            }
    }
}
}  // namespace on_cpu

DEVICE void mma_u8s8(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2], on_cpu::Site site = HERE) {
    on_cpu::multiply_fragments(c, a, b, site, dot4);
}
DEVICE void mma_s8s8(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2], on_cpu::Site site = HERE) {
    on_cpu::multiply_fragments(c, a, b, site, dot4_signed);
}
DEVICE void mma_f16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], on_cpu::Site site = HERE) {
    on_cpu::multiply_fragments(c, a, b, site, [](u32 x, u32 y, float sum) {
        return sum + half_to_float((u16)x) * half_to_float((u16)y) + half_to_float((u16)(x >> 16)) * half_to_float((u16)(y >> 16));
    });
}

// --- from kernel to kernel ---
DEVICE void let_next_kernel_start() {}
DEVICE void await_previous_kernel() {
    on_cpu::machine.current->has_awaited = true;
    if (!on_cpu::machine.closed.empty()) on_cpu::open_memory();
}

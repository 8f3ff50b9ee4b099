// What kernels ask of the machine: types, the form of a kernel, and the few intrinsics that plain C++ has not.
// A kernel takes one struct of 8-byte fields (pointers, i64, double), which engine/backend/cuda/launch.py fills by name.
// With TERRACE_EMULATED the same sources are compiled for the processor (tools/cuda_on_cpu), so that they can be tested
// without a card; nothing outside this file knows the difference.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

#ifdef TERRACE_EMULATED
#include "cuda_on_cpu.h"
#else

#define DEVICE static __device__ __forceinline__
#ifndef MIN_BLOCKS  // of a program's kernels that a multiprocessor is to hold at once
#define MIN_BLOCKS 1
#endif
#define KERNEL(name, threads, Arguments) extern "C" __global__ void __launch_bounds__(threads, MIN_BLOCKS) name(const __grid_constant__ Arguments a)
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) u8 name[]
#define SHARED __shared__ __align__(16)

#ifndef INFINITY  // NVRTC has no headers of the C library
#define INFINITY __int_as_float(0x7F800000)
#endif

struct alignas(16) Word4 { u32 x, y, z, w; };

// --- within a warp ---
DEVICE int lane_id() { return threadIdx.x & 31; }
DEVICE int warp_id() { return __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 32, 0); }  // by a shuffle, so that the compiler sees it is one for all lanes
template <class V> DEVICE V shuffle(V v, int lane) { return __shfl_sync(0xFFFFFFFFu, v, lane); }
template <class V> DEVICE V shuffle_xor(V v, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, v, mask); }
DEVICE u32 warp_ballot(bool b) { return __ballot_sync(0xFFFFFFFFu, b); }
DEVICE u32 warp_greatest(u32 v) { return __reduce_max_sync(0xFFFFFFFFu, v); }
DEVICE u32 warp_least(u32 v) { return __reduce_min_sync(0xFFFFFFFFu, v); }
DEVICE void warp_barrier() { __syncwarp(); }
DEVICE void block_barrier() { __syncthreads(); }

// --- integers ---
// c + the sum of four products, bytes of `codes` unsigned, bytes of `x` signed
DEVICE i32 dot4(u32 codes, u32 x, i32 c) {
    i32 d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(codes), "r"(x), "r"(c));
    return d;
}
DEVICE i32 dot4_signed(u32 a, u32 b, i32 c) { return __dp4a((i32)a, (i32)b, c); }
DEVICE u32 permute_bytes(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }
DEVICE int count_bits(u32 v) { return __popc(v); }
DEVICE int leading_zeros(u32 v) { return __clz(v); }

// --- floats: named forms are never contracted into a fused multiply-add ---
DEVICE float mul(float x, float y) { return __fmul_rn(x, y); }
DEVICE float add(float x, float y) { return __fadd_rn(x, y); }
DEVICE float sub(float x, float y) { return __fsub_rn(x, y); }
DEVICE float divide(float x, float y) { return __fdiv_rn(x, y); }
DEVICE float round_even(float x) { return rintf(x); }
DEVICE float bits_to_float(u32 v) { return __uint_as_float(v); }
DEVICE u32 float_to_bits(float v) { return __float_as_uint(v); }
DEVICE float half_to_float(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
DEVICE u16 float_to_half(float f) {  // half to even, too large is infinity
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

// --- memory ---
// 16 bytes of weights, read once: they do not displace what is in the first cache
DEVICE Word4 load_weights16(const void* p) {
    Word4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
DEVICE void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
DEVICE void fence() { __threadfence(); }
DEVICE void fence_system() { __threadfence_system(); }
DEVICE u32 atomic_add(u32* p, u32 v) { return atomicAdd(p, v); }
DEVICE i32 atomic_add(i32* p, i32 v) { return atomicAdd(p, v); }
DEVICE u64 atomic_add(u64* p, u64 v) { return atomicAdd(p, v); }
DEVICE u64 atomic_max(u64* p, u64 v) { return atomicMax(p, v); }
// 16 bytes from global into shared memory without a register; `commit` closes a group, `wait<n>` leaves n groups open
DEVICE void copy16_async(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(shared)), "l"(global));
}
DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;"); }
template <int N> DEVICE void copy_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// --- tensor cores; fragments as the PTX manual lays them out ---
// c i32 [16 x 8] += a u8 or s8 [16 x 32] * b s8 [32 x 8]
DEVICE void mma_u8s8(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void mma_s8s8(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// c f32 [16 x 8] += a f16 [16 x 16] * b f16 [16 x 8]
DEVICE void mma_f16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// --- from kernel to kernel (programmatic dependent launch); without that attribute both do nothing ---
DEVICE void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
DEVICE void await_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif  // TERRACE_EMULATED

// --- sums over a warp, in one order: lanes 16 apart first ---
DEVICE float warp_sum(float v) {
    for (int m = 16; m > 0; m >>= 1) v = add(v, shuffle_xor(v, m));
    return v;
}
DEVICE i32 warp_sum(i32 v) {
    for (int m = 16; m > 0; m >>= 1) v += shuffle_xor(v, m);
    return v;
}
DEVICE float warp_max(float v) {
    for (int m = 16; m > 0; m >>= 1) v = fmaxf(v, shuffle_xor(v, m));
    return v;
}
DEVICE float sigmoid(float x) { return divide(1.0f, add(1.0f, expf(-x))); }

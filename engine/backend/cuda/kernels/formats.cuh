// The block formats as they lie in device memory, and how a lane reads 64 weights (a chunk) of one.
//
// On upload (repack.cu) a matrix [rows, columns] becomes planes, each [rows, units of a row, bytes of a unit], one behind the
// other, every plane on a 256-byte border. Codes are split by bits, so that one lane's loads are whole words:
//   NIBBLES  32 bytes a chunk: element e in byte e % 32, bits 4 * (e / 32) …
//   CRUMBS   16 bytes a chunk: element e in byte e % 16, bits 2 * (e / 16) …
//   BITS      8 bytes a chunk: element e in byte e % 8, bit e / 8
//   BYTES    64 bytes a chunk
// Units of 32 and 64 bytes are cut into pieces of 16, and a row has the first pieces of all its chunks, then the second ones:
// so lanes that take a chunk each read neighbouring bytes.
// and after them the plane of scales and, for some, that of floats. A code of 5 bits has a nibble and a bit, of 6 bits a
// nibble and a crumb, of 3 bits a crumb and a bit. engine/backend/cuda/layouts.py holds the same table.
#pragma once
#include "platform.cuh"

enum Scales {
    PACKED_K,   // 16 bytes a 256: f16 d, f16 m, eight 6-bit scales and minimums, as the file packs them
    SIGNED_16,  // 16 bytes a 256: sixteen signed scales; then a plane of f16 d
    HALF,       // f16 d a 32
    HALF_PAIR,  // f16 d, f16 m a 32: weights are d * code + m
    NIBBLE_PAIRS,  // 16 bytes a 256: sixteen (scale, minimum << 4); then a plane of f16 d, f16 m
    SIGNED_8,   // 8 bytes a 256: eight signed scales; then a plane of f16 d
    EXPONENT,   // one byte a 32: d = half of a power of two
    SMALL_FLOAT,  // four bytes a 64: one 8-bit float for 16 weights, halved
    ONLY_HALF,  // a plane of f16 d a 256, no scales
};
enum Values { LINEAR, NONLINEAR, E2M1 };  // what a 4-bit code stands for

template <int BITS_, Scales SCALES_, int GROUP_, int OFFSET_, Values VALUES_ = LINEAR> struct Layout {
    static constexpr int BITS = BITS_, GROUP = GROUP_, OFFSET = OFFSET_;  // GROUP: elements that share an integer scale
    static constexpr Scales SCALES = SCALES_;
    static constexpr Values VALUES = VALUES_;
    static constexpr bool NARROW = SCALES == HALF || SCALES == HALF_PAIR || SCALES == EXPONENT || SCALES == SMALL_FLOAT;
    // elements whose products are added up as integers before a float is needed
    static constexpr int STEP = SCALES == SMALL_FLOAT ? 16 : NARROW ? 32 : 256;
    static constexpr int ACTIVATION_BLOCK = NARROW ? 32 : 256;  // elements that share an activation scale
    static constexpr bool WEIGHTED = SCALES == HALF_PAIR;       // asks for f16(scale * sum) of the activations
    static constexpr bool SIGNED = BITS == 8 || VALUES != LINEAR;  // codes are signed bytes
    static constexpr bool MINIMUMS = SCALES == PACKED_K || SCALES == NIBBLE_PAIRS;
    static constexpr int MAIN = BITS == 8 ? 64 : BITS >= 4 ? 32 : 16;        // bytes a chunk of the first plane
    static constexpr int SECOND = BITS == 6 ? 16 : BITS == 5 || BITS == 3 ? 8 : 0;
    static constexpr int SCALE_UNIT = SCALES == SMALL_FLOAT ? 64 : NARROW ? 32 : 256;  // elements
    static constexpr int SCALE_BYTES = SCALES == PACKED_K || SCALES == SIGNED_16 || SCALES == NIBBLE_PAIRS ? 16
                                       : SCALES == SIGNED_8 ? 8 : SCALES == HALF_PAIR || SCALES == SMALL_FLOAT ? 4
                                       : SCALES == HALF ? 2 : SCALES == EXPONENT ? 1 : 0;
    static constexpr int FLOAT_BYTES = SCALES == SIGNED_16 || SCALES == SIGNED_8 || SCALES == ONLY_HALF ? 2
                                       : SCALES == NIBBLE_PAIRS ? 4 : 0;  // a 256
};

typedef Layout<4, HALF, 32, 8> Q4_0;
typedef Layout<4, HALF_PAIR, 32, 0> Q4_1;
typedef Layout<5, HALF, 32, 16> Q5_0;
typedef Layout<5, HALF_PAIR, 32, 0> Q5_1;
typedef Layout<8, HALF, 32, 0> Q8_0;
typedef Layout<4, HALF, 32, 0, NONLINEAR> IQ4_NL;
typedef Layout<4, PACKED_K, 32, 0> Q4_K;
typedef Layout<5, PACKED_K, 32, 0> Q5_K;
typedef Layout<6, SIGNED_16, 16, 32> Q6_K;
typedef Layout<2, NIBBLE_PAIRS, 16, 0> Q2_K;
typedef Layout<3, SIGNED_16, 16, 4> Q3_K;
typedef Layout<4, SIGNED_8, 32, 0, NONLINEAR> IQ4_XS;
typedef Layout<4, EXPONENT, 32, 0, E2M1> MXFP4;
typedef Layout<4, SMALL_FLOAT, 16, 0, E2M1> NVFP4;
typedef Layout<2, HALF, 32, 1> Q2_0;
typedef Layout<2, ONLY_HALF, 32, 1> TQ1_0;
typedef Layout<2, ONLY_HALF, 32, 1> TQ2_0;

DEVICE i64 on_border(i64 n_bytes) { return (n_bytes + 255) / 256 * 256; }

// One matrix: where its planes start. `chunks` of a row: columns / 64, rounded up.
template <class F> struct Matrix {
    const u8 *main, *second, *scales, *floats;
    i64 chunks, units, blocks;

    DEVICE Matrix at(const void* base, i64 rows, i64 columns) {
        Matrix m;
        m.chunks = (columns + 63) / 64;
        m.units = F::NARROW ? (columns + 63) / 64 * (64 / F::SCALE_UNIT) : columns / 256;
        m.blocks = columns / 256;
        m.main = (const u8*)base;
        m.second = m.main + on_border(rows * m.chunks * F::MAIN);
        m.scales = m.second + on_border(rows * m.chunks * F::SECOND);
        m.floats = m.scales + on_border(rows * m.units * F::SCALE_BYTES);
        return m;
    }
};

// What one lane loads for a chunk. Loading and reading are apart, so that loads can be under way before they are needed.
template <class F> struct Chunk {
    alignas(16) u32 main[F::MAIN / 4];
    alignas(16) u32 second[F::SECOND ? F::SECOND / 4 : 1];
    alignas(16) u32 scales[4];
    u32 floats;
    int quarter;  // of its 256

    // where piece i of the main plane of chunk c lies
    DEVICE u64 piece_at(const Matrix<F>& m, int row, int c, int i) {
        return ((u64)((u32)row * (u32)m.chunks) * (F::MAIN / 16) + (u32)(i * (int)m.chunks + c)) * 16;
    }
    // chunk c of a row; lanes past the end load nothing and count as zeros
    DEVICE Chunk load(const Matrix<F>& m, int row, int c) { return load(m, row, c, (int)m.chunks); }
    DEVICE Chunk load(const Matrix<F>& m, int row, int c, int end) {
        Chunk k;
        k.quarter = c & 3;
        k.floats = 0;
#pragma unroll
        for (int i = 0; i < F::MAIN / 4; ++i) k.main[i] = 0;
#pragma unroll
        for (int i = 0; i < (F::SECOND ? F::SECOND / 4 : 1); ++i) k.second[i] = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) k.scales[i] = 0;
        if (c >= end) return k;
        const u32 at = (u32)row * (u32)m.chunks + (u32)c;  // a matrix has fewer than 2^32 chunks
#pragma unroll
        for (int i = 0; i < F::MAIN / 16; ++i) *(Word4*)(k.main + 4 * i) = load_weights16(m.main + piece_at(m, row, c, i));
        if (F::SECOND == 16) *(Word4*)k.second = load_weights16(m.second + (u64)at * 16);
        if (F::SECOND == 8) {
            const u32* p = (const u32*)(m.second + (u64)at * 8);
            k.second[0] = p[0], k.second[1] = p[1];
        }
        const u32 block = (u32)row * (u32)m.blocks + (u32)c / 4;
        if (F::SCALES == PACKED_K) *(Word4*)k.scales = load_weights16(m.scales + (u64)block * 16);
        if (F::SCALES == SIGNED_16 || F::SCALES == NIBBLE_PAIRS) k.scales[0] = *(const u32*)(m.scales + (u64)block * 16 + 4 * k.quarter);
        if (F::SCALES == SIGNED_8) k.scales[0] = *(const u16*)(m.scales + (u64)block * 8 + 2 * k.quarter);
        if (F::SCALES == HALF) k.scales[0] = *(const u32*)(m.scales + (u64)at * 4);
        if (F::SCALES == HALF_PAIR) k.scales[0] = *(const u32*)(m.scales + (u64)at * 8), k.scales[1] = *(const u32*)(m.scales + (u64)at * 8 + 4);
        if (F::SCALES == EXPONENT) k.scales[0] = *(const u16*)(m.scales + (u64)at * 2);
        if (F::SCALES == SMALL_FLOAT) k.scales[0] = *(const u32*)(m.scales + (u64)at * 4);
        if (F::FLOAT_BYTES == 2) k.floats = *(const u16*)(m.floats + (u64)block * 2);
        if (F::FLOAT_BYTES == 4) k.floats = *(const u32*)(m.floats + (u64)block * 4);
        return k;
    }

    // codes of elements 32 * half + 4 * k …, k = 0..7, in bytes
    DEVICE u32 four_of_nibbles(const Chunk& c, int half, int k) { return (c.main[k] >> (4 * half)) & 0x0F0F0F0Fu; }
    DEVICE u32 codes(const Chunk& c, int half, int k) {
        u32 v;
        if (F::BITS == 8) return c.main[(8 * half + k) % (F::MAIN / 4)];
        if (F::BITS >= 4) v = four_of_nibbles(c, half, k % (F::MAIN / 4));
        else v = (c.main[k % 4] >> (2 * (2 * half + k / 4))) & 0x03030303u;
        if (F::BITS == 6) v |= ((c.second[k % (F::SECOND ? F::SECOND / 4 : 1)] >> (2 * (2 * half + k / 4))) & 0x03030303u) << 4;
        if (F::BITS == 5) v |= ((c.second[k % 2 % (F::SECOND ? F::SECOND / 4 : 1)] >> (4 * half + k / 2)) & 0x01010101u) << 4;
        if (F::BITS == 3) v |= ((c.second[k % 2 % (F::SECOND ? F::SECOND / 4 : 1)] >> (4 * half + k / 2)) & 0x01010101u) << 2;
        if (F::VALUES == NONLINEAR) return look_up(v, 0xBFAD9881u, 0xF6EADDCFu, 0x26190D01u, 0x71594535u);
        if (F::VALUES == E2M1) return look_up(v, 0x03020100u, 0x0C080604u, 0xFDFEFF00u, 0xF4F8FAFCu);
        return v;
    }
    // four 4-bit indices in bytes -> four entries of a table of sixteen signed bytes
    DEVICE u32 look_up(u32 v, u32 t0, u32 t1, u32 t2, u32 t3) {
        const u32 selector = (v & 0x7) | ((v >> 4) & 0x70) | ((v >> 8) & 0x700) | ((v >> 12) & 0x7000);
        const u32 low = permute_bytes(t0, t1, selector), high = permute_bytes(t2, t3, selector);
        const u32 upper = ((v >> 3) & 0x01010101u) * 0xFFu;  // bytes whose index is 8 or more
        return (low & ~upper) | (high & upper);
    }
    // integer scale and minimum of group g of the chunk (two of 32 elements, or four of 16)
    DEVICE i32 scale(const Chunk& c, int g) {
        if (F::SCALES == PACKED_K) {
            const int at = 16 * (c.quarter & 1) + 8 * g;
            if (c.quarter < 2) return (c.scales[1] >> at) & 63;
            return ((c.scales[3] >> at) & 15) | (((c.scales[1] >> (at + 6)) & 3) << 4);
        }
        if (F::SCALES == SIGNED_16 || F::SCALES == SIGNED_8) return (i8)(c.scales[0] >> (8 * g));
        if (F::SCALES == NIBBLE_PAIRS) return (c.scales[0] >> (8 * g)) & 15;
        return 1;
    }
    DEVICE i32 minimum(const Chunk& c, int g) {
        if (F::SCALES == PACKED_K) {
            const int at = 16 * (c.quarter & 1) + 8 * g;
            if (c.quarter < 2) return (c.scales[2] >> at) & 63;
            return ((c.scales[3] >> (at + 4)) & 15) | (((c.scales[2] >> (at + 6)) & 3) << 4);
        }
        if (F::SCALES == NIBBLE_PAIRS) return (c.scales[0] >> (8 * g + 4)) & 15;
        return 0;
    }
    // float factor of step s of the chunk, and what is taken away or added
    DEVICE float d(const Chunk& c, int s) {
        if (F::SCALES == PACKED_K) return half_to_float((u16)c.scales[0]);
        if (F::SCALES == HALF) return half_to_float((u16)(c.scales[0] >> (16 * s)));
        if (F::SCALES == HALF_PAIR) return half_to_float((u16)c.scales[s]);
        if (F::SCALES == EXPONENT) {
            const u32 e = (c.scales[0] >> (8 * s)) & 255;
            return e >= 2 ? bits_to_float((e - 1) << 23) : bits_to_float(0x00200000u << e);
        }
        if (F::SCALES == SMALL_FLOAT) return half_of_small_float((c.scales[0] >> (8 * s)) & 255);
        return half_to_float((u16)c.floats);
    }
    DEVICE float m(const Chunk& c, int s) {
        if (F::SCALES == PACKED_K) return half_to_float((u16)(c.scales[0] >> 16));
        if (F::SCALES == NIBBLE_PAIRS) return half_to_float((u16)(c.floats >> 16));
        return half_to_float((u16)(c.scales[s & 3] >> 16));
    }
    // four bits of exponent, three of mantissa, no sign; 0 and 127 count as zero
    DEVICE float half_of_small_float(u32 v) {
        if (v == 0 || v == 127) return 0.0f;
        const u32 e = (v >> 3) & 15, f = v & 7;
        if (e == 0) return mul((float)f, 1.0f / 1024.0f);
        return bits_to_float(((e + 127 - 7 - 1) << 23) | (f << 20));
    }
};

// Blocks as they lie in the file, into planes (formats.cuh). A thread takes a chunk of 64 elements; gridDim.y matrices.
#include "formats.cuh"

#ifndef FORMAT
#define FORMAT Q4_K
#define SOURCE_Q4_K
#endif

struct RepackArguments {
    const u8* blocks;  // [matrices, rows, row_bytes], as in the file: rows first_row … of each
    i64 row_bytes, rows, first_row, matrix_rows, columns, matrix_bytes;
    u8* out;  // [matrices, matrix_bytes]
};

// Of each format: how many elements and bytes a block has, the code of element i (without an offset taken away; signed
// codes as signed bytes), and its scales and floats as the planes hold them.
[[maybe_unused]] DEVICE u8 nibble_of(const u8* q, int i) { return (q[i % 16] >> (4 * (i / 16))) & 15; }
[[maybe_unused]] DEVICE u8 crumb_across(const u8* q, int i) { return (q[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4))) & 3; }

#if defined(SOURCE_Q4_0) || defined(SOURCE_IQ4_NL)
static constexpr int ELEMENTS = 32, BLOCK = 18;
DEVICE u8 code(const u8* b, int i) { return nibble_of(b + 2, i); }
DEVICE u8 scale_byte(const u8* b, int i) { return b[i]; }
#elif defined(SOURCE_Q4_1)
static constexpr int ELEMENTS = 32, BLOCK = 20;
DEVICE u8 code(const u8* b, int i) { return nibble_of(b + 4, i); }
DEVICE u8 scale_byte(const u8* b, int i) { return b[i]; }
#elif defined(SOURCE_Q5_0)
static constexpr int ELEMENTS = 32, BLOCK = 22;
DEVICE u8 code(const u8* b, int i) { return nibble_of(b + 6, i) | (((b[2 + i / 8] >> (i % 8)) & 1) << 4); }
DEVICE u8 scale_byte(const u8* b, int i) { return b[i]; }
#elif defined(SOURCE_Q5_1)
static constexpr int ELEMENTS = 32, BLOCK = 24;
DEVICE u8 code(const u8* b, int i) { return nibble_of(b + 8, i) | (((b[4 + i / 8] >> (i % 8)) & 1) << 4); }
DEVICE u8 scale_byte(const u8* b, int i) { return b[i]; }
#elif defined(SOURCE_Q8_0)
static constexpr int ELEMENTS = 32, BLOCK = 34;
DEVICE u8 code(const u8* b, int i) { return b[2 + i]; }
DEVICE u8 scale_byte(const u8* b, int i) { return b[i]; }
#elif defined(SOURCE_MXFP4)
static constexpr int ELEMENTS = 32, BLOCK = 17;
DEVICE u8 code(const u8* b, int i) { return nibble_of(b + 1, i); }
DEVICE u8 scale_byte(const u8* b, int i) { return b[i]; }
#elif defined(SOURCE_NVFP4)
static constexpr int ELEMENTS = 64, BLOCK = 36;
DEVICE u8 code(const u8* b, int i) { return (b[4 + 8 * (i / 16) + i % 8] >> (4 * (i / 8 % 2))) & 15; }
DEVICE u8 scale_byte(const u8* b, int i) { return b[i]; }
#elif defined(SOURCE_Q2_0)
static constexpr int ELEMENTS = 64, BLOCK = 18;
DEVICE u8 code(const u8* b, int i) { return (b[2 + i / 4] >> (2 * (i % 4))) & 3; }
DEVICE u8 scale_byte(const u8* b, int i) { return b[i % 2]; }  // of both halves
#elif defined(SOURCE_Q4_K)
static constexpr int ELEMENTS = 256, BLOCK = 144;
DEVICE u8 code(const u8* b, int i) { return (b[16 + 32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2))) & 15; }
DEVICE u8 scale_byte(const u8* b, int i) { return b[i]; }
#elif defined(SOURCE_Q5_K)
static constexpr int ELEMENTS = 256, BLOCK = 176;
DEVICE u8 code(const u8* b, int i) {
    return ((b[48 + 32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2))) & 15) | (((b[16 + i % 32] >> (i / 32)) & 1) << 4);
}
DEVICE u8 scale_byte(const u8* b, int i) { return b[i]; }
#elif defined(SOURCE_Q6_K)
static constexpr int ELEMENTS = 256, BLOCK = 210;
DEVICE u8 code(const u8* b, int i) {
    const int half = i / 128, quarter = i / 32 % 4;
    return ((b[64 * half + 32 * (quarter % 2) + i % 32] >> (4 * (quarter / 2))) & 15) | (((b[128 + 32 * half + i % 32] >> (2 * quarter)) & 3) << 4);
}
DEVICE u8 scale_byte(const u8* b, int i) { return b[192 + i]; }
DEVICE u8 float_byte(const u8* b, int i) { return b[208 + i]; }
#elif defined(SOURCE_Q2_K)
static constexpr int ELEMENTS = 256, BLOCK = 84;
DEVICE u8 code(const u8* b, int i) { return crumb_across(b + 16, i); }
DEVICE u8 scale_byte(const u8* b, int i) { return b[i]; }
DEVICE u8 float_byte(const u8* b, int i) { return b[80 + i]; }
#elif defined(SOURCE_Q3_K)
static constexpr int ELEMENTS = 256, BLOCK = 110;
DEVICE u8 code(const u8* b, int i) { return crumb_across(b + 32, i) | (((b[i % 32] >> (i / 32)) & 1) << 2); }
DEVICE u8 scale_byte(const u8* b, int i) {
    const int low = (b[96 + i % 8] >> (4 * (i / 8))) & 15, high = (b[104 + i % 4] >> (2 * (i / 4))) & 3;
    return (u8)((low | high << 4) - 32);
}
DEVICE u8 float_byte(const u8* b, int i) { return b[108 + i]; }
#elif defined(SOURCE_IQ4_XS)
static constexpr int ELEMENTS = 256, BLOCK = 136;
DEVICE u8 code(const u8* b, int i) { return nibble_of(b + 8 + 16 * (i / 32), i % 32); }
DEVICE u8 scale_byte(const u8* b, int i) {
    const int low = (b[4 + i / 2] >> (4 * (i % 2))) & 15, high = (b[2 + i / 4] >> (2 * (i % 4))) & 3;
    return (u8)((low | high << 4) - 32);
}
DEVICE u8 float_byte(const u8* b, int i) { return b[i]; }
#elif defined(SOURCE_TQ1_0)
static constexpr int ELEMENTS = 256, BLOCK = 54;
// a byte holds digits in base three as a fraction, the first of them highest
DEVICE u8 digit(u8 byte, int place) {
    const u8 powers[5] = {1, 3, 9, 27, 81};
    return ((u32)(u8)(byte * powers[place]) * 3) >> 8;
}
DEVICE u8 code(const u8* b, int i) {
    if (i < 160) return digit(b[i % 32], i / 32);
    if (i < 240) return digit(b[32 + (i - 160) % 16], (i - 160) / 16);
    return digit(b[48 + (i - 240) % 4], (i - 240) / 4);
}
DEVICE u8 scale_byte(const u8* b, int i) { return 0; }
DEVICE u8 float_byte(const u8* b, int i) { return b[52 + i]; }
#elif defined(SOURCE_TQ2_0)
static constexpr int ELEMENTS = 256, BLOCK = 66;
DEVICE u8 code(const u8* b, int i) { return crumb_across(b, i); }
DEVICE u8 scale_byte(const u8* b, int i) { return 0; }
DEVICE u8 float_byte(const u8* b, int i) { return b[64 + i]; }
#endif
#if defined(SOURCE_Q4_0) || defined(SOURCE_IQ4_NL) || defined(SOURCE_Q4_1) || defined(SOURCE_Q5_0) || defined(SOURCE_Q5_1) || \
    defined(SOURCE_Q8_0) || defined(SOURCE_MXFP4) || defined(SOURCE_NVFP4) || defined(SOURCE_Q2_0) || defined(SOURCE_Q4_K) || defined(SOURCE_Q5_K)
DEVICE u8 float_byte(const u8* b, int i) { return 0; }  // these have no such plane
#endif

KERNEL(repack, 128, RepackArguments) {
    typedef FORMAT F;
    const Matrix<F> m = Matrix<F>::at(a.out + blockIdx.y * a.matrix_bytes, a.matrix_rows, a.columns);
    const i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x, r = item / m.chunks, c = item % m.chunks;
    if (r >= a.rows) return;
    const u8* blocks = a.blocks + (blockIdx.y * a.rows + r) * a.row_bytes;
    const i64 row = a.first_row + r, at = row * m.chunks + c;
    u8 codes[64];
    for (int i = 0; i < 64; ++i) {
        const i64 e = 64 * c + i;
        codes[i] = e < a.columns ? code(blocks + e / ELEMENTS * BLOCK, (int)(e % ELEMENTS)) : 0;
    }
    u8* second = (u8*)m.second + at * F::SECOND;
    for (int i = 0; i < F::MAIN; ++i) {
        u8* main = (u8*)m.main + Chunk<F>::piece_at(m, (int)row, (int)c, i / 16) - i / 16 * 16;
        if (F::BITS == 8) main[i] = codes[i];
        else if (F::BITS >= 4) main[i] = (codes[i] & 15) | (codes[(i + 32) % 64] & 15) << 4;
        else main[i] = (codes[i] & 3) | (codes[(i + 16) % 64] & 3) << 2 | (codes[(i + 32) % 64] & 3) << 4 | (codes[(i + 48) % 64] & 3) << 6;
    }
    const int shift = F::BITS == 3 ? 2 : 4;
    for (int i = 0; i < F::SECOND; ++i) {
        u8 byte = 0;
        for (int k = 0; k < 64; k += F::SECOND) byte |= F::SECOND == 16 ? ((codes[(k + i) % 64] >> shift) & 3) << (k / 8) : ((codes[(k + i) % 64] >> shift) & 1) << (k / 8);
        second[i] = byte;
    }
    if (F::NARROW) {
        constexpr int UNITS = 64 / F::SCALE_UNIT;
        for (int k = 0; k < UNITS; ++k)
            for (int i = 0; i < F::SCALE_BYTES; ++i) {
                const i64 e = 64 * c + k * F::SCALE_UNIT;
                ((u8*)m.scales)[(row * m.units + c * UNITS + k) * F::SCALE_BYTES + i] = e < a.columns ? scale_byte(blocks + e / ELEMENTS * BLOCK, i) : 0;
            }
    } else if (c % 4 == 0) {
        for (int i = 0; i < F::SCALE_BYTES; ++i) ((u8*)m.scales)[(row * m.units + c / 4) * F::SCALE_BYTES + i] = scale_byte(blocks + c / 4 * BLOCK, i);
        for (int i = 0; i < F::FLOAT_BYTES; ++i) ((u8*)m.floats)[(row * m.blocks + c / 4) * F::FLOAT_BYTES + i] = float_byte(blocks + c / 4 * BLOCK, i);
    }
}

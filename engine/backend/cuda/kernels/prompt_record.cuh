// Activations of a prompt: f32 rows as records of 256 int8 codes with what belongs to them, in the order in which a tensor
// core takes them, and how a warp rounds one. The numbers are those of engine/backend/cpu/quantize.py, bit for bit.
//
// A record is RECORD_BYTES, [rows, records of a row]; what is past the last column counts as zero. Of 32 codes,
// eight bytes at 8 t hold elements 4 t … and 16 + 4 t …, four each: what lane t of four multiplies.
#pragma once
#include "platform.cuh"

static constexpr int RECORD_BYTES = 320;
static constexpr int CODES_BYTES = 256;
// behind the codes, for blocks of 256: sixteen f16 sums of 16 codes (whole numbers up to 2048, so exact), then one f32 scale
static constexpr int SCALE_AT = 288;
// for blocks of 32: eight f32 scales, then eight f32 f16(scale * sum of codes)
static constexpr int WEIGHTED_AT = 288;

// eight neighbours of a row from `at` on, past its end zeros
DEVICE void load_eight(float (&v)[8], const float* row, int at, int columns) {
    if (at + 8 <= columns && (u64)(row + at) % 16 == 0) {
        const Word4 low = *(const Word4*)(row + at), high = *(const Word4*)(row + at + 4);
        const u32 words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = bits_to_float(words[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = at + i < columns ? row[at + i] : 0.0f;
}

// the same back
DEVICE void store_eight(float* row, const float (&v)[8], int at, int columns) {
    if (at + 8 <= columns && (u64)(row + at) % 16 == 0) {
        *(Word4*)(row + at) = Word4{float_to_bits(v[0]), float_to_bits(v[1]), float_to_bits(v[2]), float_to_bits(v[3])};
        *(Word4*)(row + at + 4) = Word4{float_to_bits(v[4]), float_to_bits(v[5]), float_to_bits(v[6]), float_to_bits(v[7])};
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
        if (at + i < columns) row[at + i] = v[i];
}

// One record by one warp; lane l holds elements 8 l …. SPAN: elements that share a scale, 256 or 32.
template <int SPAN> DEVICE void round_record(const float (&v)[8], u8* record) {
    const int lane = lane_id();
    u32 top = 0;  // bits of |v| order as integers, and those of a NaN are above all
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const u32 size = float_to_bits(v[i]) & 0x7FFFFFFFu;
        top = size > top ? size : top;
    }
#pragma unroll
    for (int m = SPAN / 16; m > 0; m >>= 1) {
        const u32 other = shuffle_xor(top, m);
        top = other > top ? other : top;
    }
    float inverse = 0.0f, d = 0.0f;
    if (SPAN == 256) {  // the value of largest size (the first of equals) keeps its sign and becomes -127
        float extreme = 0.0f;
        bool held = false;
#pragma unroll
        for (int i = 7; i >= 0; --i)
            if ((float_to_bits(v[i]) & 0x7FFFFFFFu) == top) extreme = v[i], held = true;
        const u32 holders = warp_ballot(held);
        extreme = shuffle(extreme, 31 - leading_zeros(holders & (0u - holders)));
        if (top != 0) {
            inverse = divide(-127.0f, extreme);
            d = divide(1.0f, inverse);
        }
    } else {
        d = divide(bits_to_float(top), 127.0f);
        if (d > 0.0f) inverse = divide(1.0f, d);
    }
    u32 packed[2] = {0, 0};
    i32 sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        i32 code = (i32)round_even(mul(v[i], inverse));
        code = code > 127 ? 127 : code;
        sum += code;
        packed[i / 4] |= ((u32)code & 255u) << (8 * (i % 4));
    }
    const i32 sum16 = sum + shuffle_xor(sum, 1), sum32 = sum16 + shuffle_xor(sum16, 2);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int word = 2 * (lane % 4) + i;  // of the 32
        *(u32*)(record + 32 * (lane / 4) + 8 * (word % 4) + 4 * (word / 4)) = packed[i];
    }
    if (SPAN == 256) {
        if (lane % 2 == 0) *(u16*)(record + CODES_BYTES + lane) = float_to_half((float)sum16);
        if (lane == 0) *(float*)(record + SCALE_AT) = d;
    } else if (lane % 4 == 0) {
        *(float*)(record + CODES_BYTES + lane) = half_to_float(float_to_half(d));
        *(float*)(record + WEIGHTED_AT + lane) = half_to_float(float_to_half(mul(d, (float)sum32)));
    }
}

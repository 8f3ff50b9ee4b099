// What the kernels that make logits share.
#pragma once
#include "platform.cuh"

// a result and its row as one number: greater results first, then lower rows; what is no finite number ranks above all
DEVICE u64 ranked(float v, i64 row) {
    u32 bits = float_to_bits(add(v, 0.0f));  // a negative zero is as great as the other
    if ((bits & 0x7F800000u) == 0x7F800000u) return ~(u64)0;
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return ((u64)bits << 32) | (0xFFFFFFFFu - (u32)row);
}

// What stands between the two products of a feed-forward.
#pragma once
#include "platform.cuh"

enum Activation { SWIGLU, GEGLU, CLAMPED_SWIGLU };  // as in engine/backend/cuda/launches.py

DEVICE float activate(int kind, float gate, float up) {
    if (kind == SWIGLU) return mul(mul(gate, sigmoid(gate)), up);
    if (kind == GEGLU) {  // by tanh; (1 + tanh z) / 2 is sigmoid(2 z)
        const float cubic = mul(0.044715f, mul(gate, gate));
        const float z = mul(mul(2.0f * 0.79788456080286535588f, gate), add(1.0f, cubic));
        return mul(mul(gate, sigmoid(z)), up);
    }
    gate = gate < 7.0f ? gate : gate != gate ? gate : 7.0f;
    up = up < 7.0f ? up : up != up ? up : 7.0f;
    up = up > -7.0f ? up : up != up ? up : -7.0f;
    return mul(mul(gate, sigmoid(mul(1.702f, gate))), add(up, 1.0f));
}

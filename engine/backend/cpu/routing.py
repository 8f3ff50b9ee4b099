"""Mixture of experts around the matrix products: choose experts, plan who computes what, add the routes up.

The plan of a window is data for `matmul`: groups int64 [1 + 3 E] = their number, then (expert, first pair, pairs) of
each expert in use, and pairs int32 [T * k], numbered token * k + route and ordered by expert. Neither the choice nor the
sums depend on what else is in the window.
"""

from engine.backend.cpu import simd, vecmath
from engine.backend.cpu.kernel import WINDOW_ROWS, float_slot, slot, take

_MINUS_INFINITY = 0xFF800000 - (1 << 32)
(LOGITS, EXPERTS, USED, IDS, WEIGHTS, NORMALISE, WEIGHT_SCALE, SCRATCH, SCRATCH_BYTES) = range(9)


def choose_experts(arguments, window, counter, worker):
    """Softmax over all experts, the `used` most probable (ties: the lower id), their weights made to add up to 1 if asked."""
    n, used = slot(arguments, EXPERTS), slot(arguments, USED)
    probabilities = slot(arguments, SCRATCH) + worker * slot(arguments, SCRATCH_BYTES)
    while True:
        t = take(counter)
        if t >= slot(window, WINDOW_ROWS):
            return
        logits = slot(arguments, LOGITS) + 4 * t * n
        for e in range(n):
            simd.store_f32(probabilities + 4 * e, simd.load_f32(logits + 4 * e))
        total = vecmath.exp_and_sum(probabilities, n, vecmath.largest(probabilities, n))
        ids, weights = slot(arguments, IDS) + 4 * t * used, slot(arguments, WEIGHTS) + 4 * t * used
        for e in range(n):
            simd.store_f32(probabilities + 4 * e, simd.load_f32(probabilities + 4 * e) / total)
        chosen_sum = simd.f32_of_bits(0)
        for j in range(used):
            best, best_value = 0, simd.f32_of_bits(_MINUS_INFINITY)
            for e in range(n):
                v = simd.load_f32(probabilities + 4 * e)
                if v > best_value:
                    best, best_value = e, v
            simd.store_i32(ids + 4 * j, best)
            simd.store_f32(weights + 4 * j, best_value)
            simd.store_f32(probabilities + 4 * best, simd.f32_of_bits(_MINUS_INFINITY))
            chosen_sum = chosen_sum + best_value
        for j in range(used):
            w = simd.load_f32(weights + 4 * j)
            if slot(arguments, NORMALISE) != 0:
                w = w / chosen_sum
            simd.store_f32(weights + 4 * j, w * float_slot(arguments, WEIGHT_SCALE))


PLAN_IDS, PLAN_EXPERTS, PLAN_USED, PLAN_GROUPS, PLAN_PAIRS, PLAN_USAGE, PLAN_COUNTS = range(7)


def plan_experts(arguments, window, counter, worker):
    """Sort the window's routes by expert. One worker does it: it is a few microseconds for a whole prompt chunk."""
    if take(counter) != 0:
        return
    n, ids = slot(arguments, PLAN_EXPERTS), slot(arguments, PLAN_IDS)
    routes = slot(window, WINDOW_ROWS) * slot(arguments, PLAN_USED)
    counts, groups = slot(arguments, PLAN_COUNTS), slot(arguments, PLAN_GROUPS)
    for e in range(n):
        simd.store_i64(counts + 8 * e, 0)
    for r in range(routes):
        at = counts + 8 * simd.load_i32(ids + 4 * r)
        simd.store_i64(at, simd.load_i64(at) + 1)
    first, active = 0, 0
    for e in range(n):
        count = simd.load_i64(counts + 8 * e)
        if count > 0:
            usage = slot(arguments, PLAN_USAGE) + 8 * e
            simd.store_i64(usage, simd.load_i64(usage) + count)
            entry = groups + 8 + 24 * active
            simd.store_i64(entry, e)
            simd.store_i64(entry + 8, first)
            simd.store_i64(entry + 16, count)
            active += 1
        simd.store_i64(counts + 8 * e, first)  # from here on: where the expert's next pair goes
        first += count
    simd.store_i64(groups, active)
    for r in range(routes):
        at = counts + 8 * simd.load_i32(ids + 4 * r)
        place = simd.load_i64(at)
        simd.store_i32(slot(arguments, PLAN_PAIRS) + 4 * place, r)
        simd.store_i64(at, place + 1)


SUM_ROUTES, SUM_WEIGHTS, SUM_USED, SUM_WIDTH, SUM_OUT, SUM_SHARED, SUM_SHARED_GATE = range(7)


def sum_routes(arguments, window, counter, worker):
    """out[t] = sum over routes, in route order, of weight * expert output; then + sigmoid(gate[t]) * shared[t]."""
    width, used = slot(arguments, SUM_WIDTH), slot(arguments, SUM_USED)
    shared, shared_gate = slot(arguments, SUM_SHARED), slot(arguments, SUM_SHARED_GATE)
    while True:
        t = take(counter)
        if t >= slot(window, WINDOW_ROWS):
            return
        out = slot(arguments, SUM_OUT) + 4 * t * width
        for j in range(used):
            w = simd.load_f32(slot(arguments, SUM_WEIGHTS) + 4 * (t * used + j))
            route = slot(arguments, SUM_ROUTES) + 4 * (t * used + j) * width
            if j == 0:
                for i in range(width):
                    simd.store_f32(out + 4 * i, w * simd.load_f32(route + 4 * i))
            else:
                for i in range(width):
                    simd.store_f32(out + 4 * i, simd.load_f32(out + 4 * i) + w * simd.load_f32(route + 4 * i))
        if shared != 0:
            gate = simd.f32_of_bits(0x3F800000)
            if shared_gate != 0:
                gate = vecmath.sigmoid(simd.load_f32(shared_gate + 4 * t))
            for i in range(width):
                part = gate * simd.load_f32(shared + 4 * (t * width + i))
                simd.store_f32(out + 4 * i, simd.load_f32(out + 4 * i) + part)

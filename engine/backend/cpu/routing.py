"""Mixture of experts around the matrix products: choose experts, plan who computes what, add the routes up.

The plan of a window is data for `matmul`: groups int64 [1 + 3 E] = their number, then (expert, first pair, pairs) of
each expert in use, and pairs int32 [T * k], numbered token * k + route and ordered by expert. Neither the choice nor the
sums depend on what else is in the window.
"""

from collections.abc import Callable
from functools import cache
from types import MappingProxyType

import numpy as np
from numba import njit

from engine.backend.cpu import simd, vecmath
from engine.backend.cpu.kernel import WINDOW_ROWS, float_slot, slot, specialise, take

_MINUS_INFINITY = np.float32(-np.inf)
# no rank is lower, and none is NaN: a token takes each expert once whatever its numbers are, as the plan's memory asks for
_LOWEST_RANK = np.float32(-1e38)
_LEAST_SUM = np.float32(2**-14)  # the divisor of weights that are made to add up to 1 is at least the smallest normal f16
(LOGITS, EXPERTS, USED, IDS, WEIGHTS, NORMALISE, WEIGHT_SCALE, SCRATCH, SCRATCH_BYTES, SELECTION_BIAS, GROUPS,
 GROUPS_USED) = range(12)


def scratch_bytes(experts: int) -> int:
    """What `choose_experts` needs for a worker: scores, ranks, and of every group its score and whether it stays."""
    return 4 * (2 * (experts + 16) + 2 * experts)


@njit(error_model="numpy")
def _softmax(scores, n):
    """Logits as probabilities, in place."""
    total = vecmath.exp_and_sum(scores, n, vecmath.largest(scores, n))
    for e in range(n):
        simd.store_f32(scores + 4 * e, simd.load_f32(scores + 4 * e) / total)


@njit(error_model="numpy")
def _sigmoid(scores, n):
    """Logits as independent probabilities, in place."""
    for e in range(n):
        simd.store_f32(scores + 4 * e, vecmath.sigmoid(simd.load_f32(scores + 4 * e)))


@njit(error_model="numpy")
def _as_they_are(scores, n):
    """Logits are ranked themselves."""


@njit(error_model="numpy")
def _keep_best_groups(ranks, n, groups, used, scratch):
    """Rank everything outside the `used` best groups at minus infinity; a group's score is the sum of its two best ranks."""
    size, kept = n // groups, scratch + 4 * groups
    for g in range(groups):
        first = second = _MINUS_INFINITY
        for e in range(g * size, (g + 1) * size):
            v = simd.load_f32(ranks + 4 * e)
            if v > first:
                first, second = v, first
            elif v > second:
                second = v
        simd.store_f32(scratch + 4 * g, first + second)
        simd.store_i32(kept + 4 * g, 0)
    for _ in range(used):
        best, best_value = 0, _MINUS_INFINITY
        for g in range(groups):
            v = simd.load_f32(scratch + 4 * g)
            if simd.load_i32(kept + 4 * g) == 0 and v > best_value:
                best, best_value = g, v
        simd.store_i32(kept + 4 * best, 1)
    for e in range(groups * size):
        if simd.load_i32(kept + 4 * (e // size)) == 0:
            simd.store_f32(ranks + 4 * e, _MINUS_INFINITY)


_SCORES = MappingProxyType({"softmax": _softmax, "sigmoid": _sigmoid, "selected_softmax": _as_they_are})
score = None  # given by `specialise`
SELECTED_SOFTMAX = False


def choose_experts(arguments, window, counter, worker):
    """Ids and weights of the `used` experts that rank best (ties: the lower id), best first.

    The rank is the score plus the selection bias, within the groups that stay; the weight is the score alone, made to add up
    to 1 if asked. With the softmax over the selected, scores are logits and become weights at the end.
    """
    n, used, bias = slot(arguments, EXPERTS), slot(arguments, USED), slot(arguments, SELECTION_BIAS)
    scores = slot(arguments, SCRATCH) + worker * slot(arguments, SCRATCH_BYTES)
    ranks, rest = scores + 4 * (n + 16), scores + 8 * (n + 16)
    while True:
        t = take(counter)
        if t >= slot(window, WINDOW_ROWS):
            return
        for e in range(n):
            simd.store_f32(scores + 4 * e, simd.load_f32(slot(arguments, LOGITS) + 4 * (t * n + e)))
        score(scores, n)
        for e in range(n):
            v = simd.load_f32(scores + 4 * e)
            if bias != 0:
                v = v + simd.load_f32(bias + 4 * e)
            if not v > _LOWEST_RANK:
                v = _LOWEST_RANK
            simd.store_f32(ranks + 4 * e, v)
        if slot(arguments, GROUPS) > 1:
            _keep_best_groups(ranks, n, slot(arguments, GROUPS), slot(arguments, GROUPS_USED), rest)
        ids, weights = slot(arguments, IDS) + 4 * t * used, slot(arguments, WEIGHTS) + 4 * t * used
        chosen_sum = np.float32(0)
        for j in range(used):
            best, best_value = 0, _MINUS_INFINITY
            for e in range(n):
                v = simd.load_f32(ranks + 4 * e)
                if v > best_value:
                    best, best_value = e, v
            weight = simd.load_f32(scores + 4 * best)
            simd.store_i32(ids + 4 * j, best)
            simd.store_f32(weights + 4 * j, weight)
            simd.store_f32(ranks + 4 * best, _MINUS_INFINITY)
            chosen_sum = chosen_sum + weight
        if SELECTED_SOFTMAX:
            for j in range(used):  # among the ranks, which have the room that exp_and_sum asks for
                simd.store_f32(ranks + 4 * j, simd.load_f32(weights + 4 * j))
            total = vecmath.exp_and_sum(ranks, used, vecmath.largest(ranks, used))
            for j in range(used):
                simd.store_f32(weights + 4 * j, simd.load_f32(ranks + 4 * j) / total)
        if chosen_sum < _LEAST_SUM:
            chosen_sum = _LEAST_SUM
        for j in range(used):
            w = simd.load_f32(weights + 4 * j)
            if slot(arguments, NORMALISE) != 0:
                w = w / chosen_sum
            simd.store_f32(weights + 4 * j, w * float_slot(arguments, WEIGHT_SCALE))


@cache
def choose_function(scoring: str) -> Callable:
    """The choosing kernel for one way of scoring."""
    return specialise(choose_experts, scoring, score=_SCORES[scoring], SELECTED_SOFTMAX=scoring == "selected_softmax")


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


(SUM_ROUTES, SUM_WEIGHTS, SUM_USED, SUM_WIDTH, SUM_OUT, SUM_SHARED, SUM_SHARED_GATE, SUM_IDS, SUM_BIAS,
 SUM_SCALE) = range(10)
ADJUSTED = False  # given by `specialise`


def sum_routes(arguments, window, counter, worker):
    """out[t] = sum over routes, in route order, of weight * expert output; then + sigmoid(gate[t]) * shared[t].

    Adjusted: an expert's output is first multiplied by its scale (f32 [experts], 0: none), then its bias (f32 [experts,
    width], 0: none) is added.
    """
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
            if ADJUSTED:
                expert = simd.load_i32(slot(arguments, SUM_IDS) + 4 * (t * used + j))
                adjust(route, expert, width, slot(arguments, SUM_SCALE), slot(arguments, SUM_BIAS))
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


@njit(error_model="numpy")
def adjust(route, expert, width, scale, bias):
    """route = route * scale[expert] + bias[expert], in place; either address may be 0."""
    if scale != 0:
        factor = simd.load_f32(scale + 4 * expert)
        for i in range(width):
            simd.store_f32(route + 4 * i, simd.load_f32(route + 4 * i) * factor)
    if bias != 0:
        for i in range(width):
            v = simd.load_f32(bias + 4 * (expert * width + i))
            simd.store_f32(route + 4 * i, simd.load_f32(route + 4 * i) + v)


@cache
def sum_function(*, adjusted: bool) -> Callable:
    """The summing kernel, plain or with scales and biases of every expert."""
    return specialise(sum_routes, "adjusted" if adjusted else "plain", ADJUSTED=adjusted)

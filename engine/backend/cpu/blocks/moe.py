"""Mixture-of-experts block: router, plan, expert products, shared expert, weighted sum. Also the dense feed-forward."""

from dataclasses import replace

import numpy as np

from engine.backend import base
from engine.backend.cpu import activations, routing
from engine.backend.cpu.program import float_bits


def moe(b, x, spec: base.Moe, w: base.Weights, router_input):
    """x f32 [T, D] -> f32 [T, D]."""
    k = spec.used
    ids = b.program.scratch("route_ids", (b.max_rows, k), np.int32)
    weights = b.program.scratch("route_weights", (b.max_rows, k))
    _choose(b, router_input, spec, w, ids, weights)
    plan = _plan(b, spec, ids)

    width = w["down_exps"].shape[-1]
    gate = up = b.rows("expert_up", width, per_token=k)
    if spec.activation != "squared_relu":
        gate = b.rows("expert_gate", width, per_token=k)
    if "gate_up_exps" in w:
        fused = w["gate_up_exps"]
        b.linear(x, fused, gate, groups=plan, row_range=(0, width), barrier=False)
        b.linear(x, fused, up, groups=plan, row_range=(width, 2 * width))
    else:
        if "gate_exps" in w:
            b.linear(x, w["gate_exps"], gate, groups=plan, barrier=False)
        b.linear(x, w["up_exps"], up, groups=plan)
    biases = (w["gate_exps_bias"], w["up_exps_bias"], ids) if "gate_exps_bias" in w else None
    hidden = activate(b, gate, up, "expert_hidden", spec.activation, biases=biases)
    routes = b.linear(hidden, w["down_exps"], b.rows("routes", w["down_exps"].shape[-2], per_token=k), groups=plan)

    shared = shared_gate = None
    if "down_shared" in w:
        parts = {role: w[f"{role}_shared"] for role in ("gate", "up", "down") if f"{role}_shared" in w}
        shared = feed_forward(b, x, parts, name="shared", activation=spec.activation)
        if "router_shared" in w:
            shared_gate = b.linear(x, _as_matrix(w["router_shared"]), b.rows("shared_gate", 1))
    out = b.rows("block_out", routes.width)
    bias, scale = w.get("down_exps_bias"), w.get("down_exps_scale")
    b.program.add(routing.sum_function(adjusted=bias is not None or scale is not None), {
        routing.SUM_ROUTES: routes.address, routing.SUM_WEIGHTS: weights.ctypes.data, routing.SUM_USED: k,
        routing.SUM_WIDTH: routes.width, routing.SUM_OUT: out.address,
        routing.SUM_SHARED: shared.address if shared else 0,
        routing.SUM_SHARED_GATE: shared_gate.address if shared_gate else 0,
        routing.SUM_IDS: ids.ctypes.data, routing.SUM_BIAS: b.vector(bias) if bias else 0,
        routing.SUM_SCALE: b.vector(scale) if scale else 0})
    return b.written(out)


def _choose(b, x, spec: base.Moe, w: base.Weights, ids: np.ndarray, weights: np.ndarray) -> None:
    """Experts of every token, ids i32 [max rows, used], and their weights f32 alike."""
    logits = b.linear(x, w["router"], b.rows("router", spec.experts), bias=w.get("router_bias"))
    scratch, piece = b.program.worker_scratch("scores_of_experts", routing.scratch_bytes(spec.experts))
    bias = w.get("selection_bias")
    b.program.add(routing.choose_function(spec.scoring), {
        routing.LOGITS: logits.address, routing.EXPERTS: spec.experts, routing.USED: spec.used,
        routing.IDS: ids.ctypes.data, routing.WEIGHTS: weights.ctypes.data, routing.NORMALISE: int(spec.normalise),
        routing.WEIGHT_SCALE: float_bits(spec.weight_scale), routing.SCRATCH: scratch, routing.SCRATCH_BYTES: piece,
        routing.SELECTION_BIAS: b.vector(bias) if bias else 0, routing.GROUPS: spec.groups,
        routing.GROUPS_USED: spec.groups_used})


def _plan(b, spec: base.Moe, ids: np.ndarray) -> tuple[int, int]:
    """Addresses of the plan and of its pairs (see routing.py). Counts the routes to every expert."""
    n = spec.experts
    groups = b.program.scratch("groups", (1 + 3 * n,), np.int64)
    pairs = b.program.scratch("pairs", (b.max_rows * spec.used,), np.int32)
    usage = b.program.memory((n,), np.int64)
    b.usage.append(usage)
    b.program.add(routing.plan_experts, {
        routing.PLAN_IDS: ids.ctypes.data, routing.PLAN_EXPERTS: n, routing.PLAN_USED: spec.used,
        routing.PLAN_GROUPS: groups.ctypes.data, routing.PLAN_PAIRS: pairs.ctypes.data,
        routing.PLAN_USAGE: usage.ctypes.data,
        routing.PLAN_COUNTS: b.program.scratch("counts", (n,), np.int64).ctypes.data})
    return groups.ctypes.data, pairs.ctypes.data


def feed_forward(b, x, w: base.Weights, *, name: str, activation: base.Activation):
    """down · activation(gate · x, up · x), or activation(up · x) where there is no gate."""
    width = w["up"].shape[0]
    gate = up = b.rows(f"{name}_up", width)
    if "gate" in w:
        gate = b.linear(x, w["gate"], b.rows(f"{name}_gate", width), barrier=False)
    b.linear(x, w["up"], up)
    hidden = activate(b, gate, up, f"{name}_hidden", activation)
    return b.linear(hidden, w["down"], b.rows(f"{name}_out", w["down"].shape[0]))


def activate(b, gate, up, name: str, kind: base.Activation, *, biases=None):
    """activation(gate, up); biases: tensors of gate and up [experts, width], and the expert of every row."""
    out = b.rows(name, gate.width, per_token=gate.per_token)
    gate_bias, up_bias, ids = biases or (None, None, None)
    b.program.add(activations.activation_function(kind, biased=biases is not None), {
        activations.GATE: gate.address, activations.UP: up.address, activations.OUT: out.address,
        activations.WIDTH: gate.width, activations.PER_TOKEN: gate.per_token, activations.UP_ROW: up.row_bytes,
        activations.GATE_BIAS: b.vector(gate_bias) if gate_bias else 0,
        activations.UP_BIAS: b.vector(up_bias) if up_bias else 0,
        activations.IDS: ids.ctypes.data if ids is not None else 0})
    return b.written(out)


def _as_matrix(vector):
    """A 1-D tensor as a matrix of one row."""
    if len(vector.shape) == 2:
        return vector
    return replace(vector, shape=(1, *vector.shape), data=vector.data.reshape(1, -1))

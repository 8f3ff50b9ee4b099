"""Mixture-of-experts block: router, plan, expert products, shared expert, weighted sum. Also the dense feed-forward."""

import numpy as np

from engine.backend import base
from engine.backend.cpu import routing, rows
from engine.backend.cpu.program import float_bits
from engine.errors import BadModel


def moe(b, x, spec: base.Moe, w: base.Weights):
    """x f32 [T, D] -> f32 [T, D]."""
    n, k = spec.experts, spec.used
    if w["router"].shape[0] != n:
        raise BadModel(f"{w['router'].name}: has {w['router'].shape[0]} rows, the model has {n} experts")
    logits = b.linear(x, w["router"], b.rows("router", n))
    ids = b.program.scratch("route_ids", (b.max_rows, k), np.int32)
    weights = b.program.scratch("route_weights", (b.max_rows, k))
    scratch, piece = b.program.worker_scratch("probabilities", 4 * (n + 16))
    b.program.add(routing.choose_experts, {
        routing.LOGITS: logits.address, routing.EXPERTS: n, routing.USED: k, routing.IDS: ids.ctypes.data,
        routing.WEIGHTS: weights.ctypes.data, routing.NORMALISE: int(spec.normalise),
        routing.WEIGHT_SCALE: float_bits(spec.weight_scale), routing.SCRATCH: scratch, routing.SCRATCH_BYTES: piece})
    groups = b.program.scratch("groups", (1 + 3 * n,), np.int64)
    pairs = b.program.scratch("pairs", (b.max_rows * k,), np.int32)
    usage = b.program.memory((n,), np.int64)
    b.usage.append(usage)
    b.program.add(routing.plan_experts, {
        routing.PLAN_IDS: ids.ctypes.data, routing.PLAN_EXPERTS: n, routing.PLAN_USED: k,
        routing.PLAN_GROUPS: groups.ctypes.data, routing.PLAN_PAIRS: pairs.ctypes.data,
        routing.PLAN_USAGE: usage.ctypes.data,
        routing.PLAN_COUNTS: b.program.scratch("counts", (n,), np.int64).ctypes.data})

    plan = (groups.ctypes.data, pairs.ctypes.data)
    width = w["down_exps"].shape[-1]
    gate, up = (b.rows(f"expert_{part}", width, per_token=k) for part in ("gate", "up"))
    if "gate_up_exps" in w:
        fused = w["gate_up_exps"]
        b.linear(x, fused, gate, groups=plan, row_range=(0, width), barrier=False)
        b.linear(x, fused, up, groups=plan, row_range=(width, 2 * width))
    else:
        b.linear(x, w["gate_exps"], gate, groups=plan, barrier=False)
        b.linear(x, w["up_exps"], up, groups=plan)
    hidden = swiglu(b, gate, up, "expert_hidden")
    routes = b.linear(hidden, w["down_exps"], b.rows("routes", w["down_exps"].shape[-2], per_token=k), groups=plan)

    shared = shared_gate = None
    if "down_shared" in w:
        parts = {role: w[f"{role}_shared"] for role in ("gate", "up", "down")}
        shared = feed_forward(b, x, parts, name="shared")
        if "router_shared" in w:
            shared_gate = b.linear(x, _as_matrix(w["router_shared"]), b.rows("shared_gate", 1))
    out = b.rows("block_out", routes.width)
    b.program.add(routing.sum_routes, {
        routing.SUM_ROUTES: routes.address, routing.SUM_WEIGHTS: weights.ctypes.data, routing.SUM_USED: k,
        routing.SUM_WIDTH: routes.width, routing.SUM_OUT: out.address,
        routing.SUM_SHARED: shared.address if shared else 0,
        routing.SUM_SHARED_GATE: shared_gate.address if shared_gate else 0})
    return b.written(out)


def feed_forward(b, x, w: base.Weights, *, name: str):
    """down · (silu(gate · x) * (up · x))."""
    width = w["gate"].shape[0]
    gate, up = b.rows(f"{name}_gate", width), b.rows(f"{name}_up", width)
    b.linear(x, w["gate"], gate, barrier=False)
    b.linear(x, w["up"], up)
    return b.linear(swiglu(b, gate, up, f"{name}_hidden"), w["down"], b.rows(f"{name}_out", w["down"].shape[0]))


def swiglu(b, gate, up, name: str):
    """silu(gate) * up."""
    out = b.rows(name, gate.width, per_token=gate.per_token)
    b.program.add(rows.swiglu, {
        rows.UNARY_A: gate.address, rows.UNARY_B: up.address, rows.UNARY_OUT: out.address,
        rows.UNARY_WIDTH: gate.width, rows.UNARY_PER_TOKEN: gate.per_token})
    return b.written(out)


def _as_matrix(vector):
    """A 1-D tensor as a matrix of one row."""
    if len(vector.shape) == 2:
        return vector
    return type(vector)(name=vector.name, shape=(1, *vector.shape), format=vector.format, n_bytes=vector.n_bytes,
                        shard=vector.shard, offset=vector.offset, data=vector.data.reshape(1, -1))

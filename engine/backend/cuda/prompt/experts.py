"""Launches of a prompt's feed-forwards: the routed experts with their router, a shared expert beside them, or a dense one."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from engine.backend import base
from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.memory import Weight
from engine.backend.cuda.products import Source
from engine.backend.cuda.prompt.chunk import Chunk
from engine.backend.cuda.prompt.products import Matrix, products
from engine.backend.cuda.prompt.records import Biases, Input, round_hidden, round_rows
from engine.backend.cuda.prompt.routing import route, sum_routes
from engine.backend.cuda.rows import Target
from engine.errors import Internal

_ACTIVATIONS = MappingProxyType({"swiglu": 0, "geglu": 1, "clamped_swiglu": 2})  # kernels/activation.cuh

_READERS = ("gate_exps", "up_exps", "gate_up_exps", "gate_shared", "up_shared", "router_shared")  # of the block's input


@dataclass(frozen=True)
class ExpertsBuffers:
    """Where the block's data is: weights by role as in `base.Moe` but for the router, which is f32 [experts, D]; vectors by
    role; `usage` u64 [experts] counts the routes."""

    weights: Mapping[str, Weight]
    vectors: Mapping[str, Buffer]
    router: Buffer
    usage: Buffer | None = None


def experts(chunk: Chunk, spec: base.Moe, held: ExpertsBuffers, source: Source, target: Target, *,
            router_source: Source | None = None) -> list[Launch]:
    """The whole block, from the rows of `source` to the target; the router reads other rows if there are some."""
    w, vectors = held.weights, held.vectors
    readers = [w[role] for role in _READERS if role in w]
    x, launches = round_rows(chunk, source, readers, name="experts", floats=router_source is None)
    read_by_router = x
    if router_source is not None:
        read_by_router, more = round_rows(chunk, router_source, (), name="router", floats=True)
        launches += more
    choice, more = route(chunk, spec, _floats(read_by_router), source.columns, held.router, usage=held.usage,
                         bias=vectors.get("router_bias"), selection_bias=vectors.get("selection_bias"))
    launches += more
    inner, used = w["down_exps"].columns, spec.used
    gate, up = (chunk.rows(f"experts.{part}", inner, per_token=used) for part in ("gate", "up"))
    if "gate_up_exps" in w:
        halves = [Matrix(w["gate_up_exps"], gate, inner), Matrix(w["gate_up_exps"], up, inner, first=inner)]
    else:
        halves = [Matrix(w["gate_exps"], gate, inner), Matrix(w["up_exps"], up, inner)]
    launches += products(chunk, x, halves, plan=choice.plan)
    biases = Biases(vectors["gate_exps_bias"], vectors["up_exps_bias"], choice.ids) if "gate_exps_bias" in vectors else None
    hidden, more = round_hidden(chunk, gate, up, inner, [w["down_exps"]], activation=_ACTIVATIONS[spec.activation],
                                name="experts.hidden", per_token=used, biases=biases)
    width = w["down_exps"].rows
    routes = chunk.rows("routes", width, per_token=used)
    launches += more + products(chunk, hidden, [Matrix(w["down_exps"], routes, width)], plan=choice.plan)
    shared = shared_gate = None
    if "down_shared" in w:
        shared = chunk.rows("shared", width)
        parts = {role: w[f"{role}_shared"] for role in ("gate", "up", "down")}
        launches += _dense(chunk, x, parts, Target(shared), activation=spec.activation)
        if "router_shared" in w:
            shared_gate = chunk.rows("shared_gate", 1)
            launches += products(chunk, x, [Matrix(w["router_shared"], shared_gate, 1)])
    return [*launches, sum_routes(chunk, choice, routes, width, target.out, vectors=vectors, shared=shared,
                                  shared_gate=shared_gate, accumulate=target.accumulate, scale=target.scale)]


def feed_forward(chunk: Chunk, weights: Mapping[str, Weight], source: Source, target: Target, *,
                 activation: base.Activation = "swiglu") -> list[Launch]:
    """down · activation(gate · x, up · x), from the rows of `source` to the target."""
    x, launches = round_rows(chunk, source, (weights["gate"], weights["up"]), name="dense")
    return launches + _dense(chunk, x, weights, target, activation=activation)


def _dense(chunk: Chunk, x: Input, w: Mapping[str, Weight], target: Target, *, activation: base.Activation) -> list[Launch]:
    inner = w["down"].columns
    gate, up = chunk.rows("dense.gate", inner), chunk.rows("dense.up", inner)
    launches = products(chunk, x, [Matrix(w["gate"], gate, inner), Matrix(w["up"], up, inner)])
    hidden, more = round_hidden(chunk, gate, up, inner, [w["down"]], activation=_ACTIVATIONS[activation], name="dense.hidden")
    return launches + more + products(chunk, hidden, [Matrix(w["down"], target.out, w["down"].rows)],
                                      accumulate=target.accumulate, scale=target.scale)


def _floats(x: Input) -> Buffer:
    if x.floats is None:
        raise Internal("the router's rows were not asked for as f32")
    return x.floats

"""Launches of a prompt's router: logits, the choice of experts, the plan of tiles, and the sum of the routes."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from engine.backend import base
from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.prompt.chunk import Chunk
from engine.backend.cuda.prompt.products import TILE_TOKENS, Plan
from engine.errors import BadModel

_SCORINGS = MappingProxyType({"softmax": 0, "sigmoid": 1, "selected_softmax": 2})  # kernels/prompt_route.cu
_BLOCK_TOKENS, _BLOCK_EXPERTS, _WARPS = 16, 32, 8
_MOST_EXPERTS, _LANES = 1024, 32


@dataclass(frozen=True)
class Choice:
    """Every token's experts i32 [tokens, used] and their weights f32 alike, and the plan of who computes what."""

    ids: Buffer
    weights: Buffer
    plan: Plan


def route(chunk: Chunk, spec: base.Moe, x: Buffer, columns: int, router: Buffer, *, usage: Buffer | None,
          bias: Buffer | None = None, selection_bias: Buffer | None = None) -> tuple[Choice, list[Launch]]:
    """x f32 [tokens, columns], router f32 [experts, columns]; usage u64 [experts] counts the routes."""
    experts, used = spec.experts, spec.used
    if experts > _MOST_EXPERTS or used > _LANES or spec.groups > _LANES:
        raise BadModel(f"{used} of {experts} experts in {spec.groups} groups: CUDA has at most {_LANES} of {_MOST_EXPERTS} in "
                       f"{_LANES}")
    capacity = min(chunk.tokens * used, chunk.tokens * used // TILE_TOKENS + experts)
    choice = Choice(
        chunk.scratch("ids", 4 * chunk.tokens * used), chunk.rows("route_weights", used),
        Plan(chunk.scratch("tiles", 16 * capacity), chunk.scratch("tile_count", 4),
             chunk.scratch("pairs", 4 * chunk.tokens * used), capacity, used))
    logits = chunk.rows("router", experts)
    grid = (-(-chunk.tokens // _BLOCK_TOKENS), -(-experts // _BLOCK_EXPERTS), 1)
    return choice, [
        Launch("prompt_route", (), "prompt_logits", grid, 256, 0, {
            "window": chunk.window, "x": x, "weights": router, "bias": bias, "columns": columns, "experts": experts,
            "logits": logits}),
        Launch("prompt_route", (), "prompt_choose", (-(-chunk.tokens // _WARPS), 1, 1), 32 * _WARPS, 8 * experts * _WARPS, {
            "window": chunk.window, "logits": logits, "selection_bias": selection_bias, "experts": experts, "used": used,
            "scoring": _SCORINGS[spec.scoring], "normalise": int(spec.normalise), "groups": spec.groups,
            "groups_used": spec.groups_used, "weight_scale": spec.weight_scale, "ids": choice.ids, "weights": choice.weights}),
        Launch("prompt_route", (), "prompt_plan", (experts, 1, 1), 256, 2 * chunk.tokens * used, {
            "window": chunk.window, "ids": choice.ids, "experts": experts, "used": used, "pairs": choice.plan.pairs,
            "tiles": choice.plan.tiles, "tile_count": choice.plan.count, "usage": usage})]


def sum_routes(chunk: Chunk, choice: Choice, routes: Buffer, columns: int, out: Buffer, *, vectors: Mapping[str, Buffer],
               shared: Buffer | None = None, shared_gate: Buffer | None = None, accumulate: bool = False,
               scale: float = 1.0) -> Launch:
    """out f32 [tokens, columns] = the routes by their weights, plus the shared expert's rows; or out += scale * that.

    vectors: down_exps_scale [experts] and down_exps_bias [experts, columns], where the model has them.
    """
    return Launch("prompt_route", (), "sum_routes", (-(-columns // 256), chunk.tokens, 1), 256, 0, {
        "window": chunk.window, "routes": routes, "weights": choice.weights, "ids": choice.ids, "used": choice.plan.used,
        "columns": columns, "factors": vectors.get("down_exps_scale"), "bias": vectors.get("down_exps_bias"), "shared": shared,
        "shared_gate": shared_gate, "out": out, "accumulate": int(accumulate), "scale": scale})

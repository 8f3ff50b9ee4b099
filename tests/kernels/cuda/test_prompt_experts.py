"""Feed-forwards of a prompt on the (emulated) card beside the CPU's: choice, plan, routed and shared experts, residuals."""

from dataclasses import replace

import numpy as np
import pytest

from engine.backend import base
from engine.backend.cuda.memory import float_values
from engine.backend.cuda.products import Source
from engine.backend.cuda.prompt.experts import ExpertsBuffers, experts, feed_forward
from engine.backend.cuda.prompt.products import TILE_TOKENS
from engine.backend.cuda.prompt.routing import route
from engine.backend.cuda.rows import Target
from engine.gguf import Tensor
from tests.kernels.cuda.prompt_card import PromptCard, on_cpu
from tests.kernels.products import _as_bytes, random_weight

T, D, INNER = 21, 256, 256
SPECS = {
    "softmax": base.Moe(experts=16, used=4, normalise=True),
    "sigmoid": base.Moe(experts=11, used=2, normalise=False, weight_scale=2.5, scoring="sigmoid", activation="geglu"),
    "groups": base.Moe(experts=16, used=3, normalise=True, scoring="sigmoid", groups=4, groups_used=2),
    "selected": base.Moe(experts=5, used=4, normalise=False, scoring="selected_softmax", activation="clamped_swiglu")}


def floats(name: str, *shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """A tensor of ordinary values."""
    values = (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)
    tensor = random_weight("F32", *shape)
    return replace(tensor, name=name, data=_as_bytes(values.reshape(-1, shape[-1]), "F32").reshape(*shape[:-1], -1))


def ordinary(name: str, form: str, *shape: int, seed: int) -> Tensor:
    """Random blocks whose floats are small."""
    tensor = random_weight(form, *shape, seed=seed)
    blocks = tensor.data.reshape(-1, tensor.format.block_bytes)
    at = {"Q4_K": (0, 2), "Q6_K": (208,), "Q8_0": (0,)}[form]
    for k in at:
        blocks[:, k:k + 2] = np.array([1e-3 if form != "Q4_K" or k else 2e-3], "<f2").view(np.uint8)
    return replace(tensor, name=name)


@pytest.mark.parametrize("kind", SPECS)
def test_choice_and_plan(device, kind):
    spec, tokens = SPECS[kind], 70
    card = PromptCard(device, tokens=tokens + 3)
    router, bias = floats("router", spec.experts, D, seed=1, scale=0.1), floats("bias", spec.experts, seed=2)
    x = np.random.default_rng(3).standard_normal((tokens, D)).astype(np.float32)
    x[5] = np.nan  # every expert ranks lowest: the first ones are taken, each once
    memory = card.memory
    usage = memory.buffer("usage", 8 * spec.experts)
    selection_bias = bias if kind != "softmax" else None
    choice, launches = route(
        card.chunk, spec, memory.array("x", x), D, memory.array("router", float_values(router)), usage=usage,
        selection_bias=memory.vector(bias) if selection_bias else None)
    memory.allocate()
    card.run(launches, rows=tokens)
    ids = card.read(choice.ids, (tokens, spec.used), np.int32)
    weights = card.read(choice.weights, (tokens, spec.used))
    expected_ids, expected_weights = reference_choice(
        x, float_values(router), spec, float_values(bias) if selection_bias else 0)
    assert np.array_equal(ids, expected_ids)
    finite = np.delete(np.arange(tokens), 5)
    assert np.abs(weights - expected_weights)[finite].max() <= 1e-5 * np.abs(expected_weights[finite]).max()
    order = np.argsort(ids.reshape(-1), kind="stable")
    assert np.array_equal(card.read(choice.plan.pairs, (tokens * spec.used,), np.int32), order)
    n_tiles = int(card.read(choice.plan.count, (1,), np.int32)[0])
    tiles, at = [], 0
    for expert, count in zip(*np.unique(ids, return_counts=True), strict=True):
        tiles += [(expert, at + k, min(TILE_TOKENS, count - k), 0) for k in range(0, count, TILE_TOKENS)]
        at += count
    assert np.array_equal(card.read(choice.plan.tiles, (n_tiles, 4), np.int32), tiles)
    assert np.array_equal(card.read(usage, (spec.experts,), np.int64), np.bincount(ids.reshape(-1), minlength=spec.experts))
    memory.free()


def reference_choice(x, router, spec, bias):
    """Ids and weights in float64, as `base.Moe` says."""
    logits = x.astype(np.float64) @ router.astype(np.float64).T
    with np.errstate(invalid="ignore"):
        scores = {"softmax": lambda: np.exp(logits - logits.max(-1, keepdims=True)),
                  "sigmoid": lambda: 1 / (1 + np.exp(-logits)), "selected_softmax": lambda: logits}[spec.scoring]()
        if spec.scoring == "softmax":
            scores /= scores.sum(-1, keepdims=True)
        ranks = np.where(np.isnan(scores + bias), -1e38, scores + bias)
    if spec.groups > 1:
        parts = ranks.reshape(len(x), spec.groups, -1)
        best = np.argsort(-np.sort(parts, -1)[..., -2:].sum(-1), -1, kind="stable")[:, :spec.groups_used]
        kept = np.zeros(parts.shape[:2], bool)
        np.put_along_axis(kept, best, True, 1)
        ranks = np.where(kept[..., None], parts, -np.inf).reshape(ranks.shape)
    ids = np.argsort(-ranks, -1, kind="stable")[:, :spec.used]
    weights = np.take_along_axis(scores, ids, -1)
    if spec.scoring == "selected_softmax":
        weights = np.exp(weights - weights.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
    if spec.normalise:
        weights = weights / weights.sum(-1, keepdims=True)
    return ids, weights * spec.weight_scale


@pytest.mark.parametrize("kind", SPECS)
def test_the_block_beside_the_cpus(device, kind):
    spec, n = SPECS[kind], SPECS[kind].experts
    card, x = PromptCard(device, tokens=T + 4), np.random.default_rng(4).standard_normal((T, D)).astype(np.float32)
    tensors = {"router": floats("router", n, D, seed=1, scale=0.1), "down_exps": ordinary("down", "Q6_K", n, D, INNER, seed=7)}
    if kind == "softmax":
        tensors |= {"gate_up_exps": ordinary("gate_up", "Q4_K", n, 2 * INNER, D, seed=5)}
    else:
        tensors |= {"gate_exps": ordinary("gate", "Q4_K", n, INNER, D, seed=5),
                    "up_exps": ordinary("up", "Q8_0", n, INNER, D, seed=6)}
    if kind == "groups":
        tensors |= {"gate_shared": ordinary("gs", "Q4_K", 96, D, seed=8), "up_shared": ordinary("us", "Q4_K", 96, D, seed=9),
                    "down_shared": ordinary("ds", "Q8_0", D, 96, seed=10),
                    "router_shared": floats("rs", 1, D, seed=11, scale=0.1)}
    vectors = {"selection_bias": floats("sb", n, seed=12, scale=0.1), "down_exps_bias": floats("db", n, D, seed=13),
               "gate_exps_bias": floats("gb", n, INNER, seed=14), "up_exps_bias": floats("ub", n, INNER, seed=15),
               "router_bias": floats("rb", n, seed=16, scale=0.1)} if kind == "selected" else {}
    expected = on_cpu(x, lambda b, rows: b.moe(rows, spec, tensors | vectors))
    memory = card.memory
    held = ExpertsBuffers({role: memory.weight(t) for role, t in tensors.items() if role != "router"},
                          {role: memory.vector(t) for role, t in vectors.items()},
                          memory.array("router", float_values(tensors["router"])))
    out = memory.array("out", np.ones((T + 4, D), np.float32))
    launches = experts(card.chunk, spec, held, Source(memory.array("x", x), D, D), Target(out, accumulate=True, scale=0.5))
    memory.allocate()
    card.run(launches, rows=T)
    got = card.read(out, (T + 4, D))
    assert np.abs(got[:T] - (1 + 0.5 * expected)).max() <= 1e-5 * np.abs(expected).max()
    assert (got[T:] == 1).all()
    memory.free()


def test_dense_feed_forward(device):
    card, x = PromptCard(device, tokens=9), np.random.default_rng(4).standard_normal((9, D)).astype(np.float32)
    tensors = {"gate": ordinary("gate", "Q4_K", 96, D, seed=5), "up": floats("up", 96, D, seed=6, scale=0.1),
               "down": ordinary("down", "Q8_0", D, 96, seed=7)}
    expected = on_cpu(x, lambda b, rows: b.feed_forward(rows, tensors))
    memory = card.memory
    out = memory.buffer("out", 4 * 9 * D)
    launches = feed_forward(card.chunk, {role: memory.weight(t) for role, t in tensors.items()},
                            Source(memory.array("x", x), D, D), Target(out))
    memory.allocate()
    card.run(launches, rows=9)
    assert np.abs(card.read(out, (9, D)) - expected).max() <= 1e-2 * np.abs(expected).max()
    memory.free()

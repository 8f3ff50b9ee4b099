"""Attention of a prompt on the (emulated) card against float64: head sizes, groups, windows, sinks, gates, norms, rotations,
and a prompt that is continued. Then the whole block beside the CPU's."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from engine.backend import base
from engine.backend.cuda.products import Source
from engine.backend.cuda.prompt.attention import AttentionBuffers, attention, heads_and_mixture
from engine.backend.cuda.rows import Target
from engine.backend.rotation import rotation_table
from tests.kernels.cuda.prompt_card import CONTEXT, PromptCard, on_cpu
from tests.kernels.cuda.test_prompt_experts import floats, ordinary

EPS = 1e-5


@dataclass(frozen=True)
class Case:
    spec: base.Attention
    tokens: int
    position: int = 0
    sinks: bool = False
    norms: bool = False
    value_of_keys: bool = False


def spec(heads: int, kv_heads: int, dim: int, value_dim: int = 0, **options) -> base.Attention:
    options = {"rope": base.Rope(dim // 2, 1e4)} | options
    return base.Attention(heads, kv_heads, dim, value_dim or dim, dim ** -0.5, EPS, **options)


CASES = {
    "128": Case(spec(8, 2, 128), 37, 40, norms=True),
    "group of 3": Case(spec(3, 1, 64, rope=base.Rope(64, 1e4, adjacent=True)), 70),
    "one token": Case(spec(4, 4, 64), 1, 90),
    "whole norms": Case(spec(4, 2, 64, whole_norms=True), 5, 3, norms=True),
    "odd sizes": Case(spec(4, 2, 80, 40, rope=None), 20, 60),
    "wide": Case(spec(2, 1, 256, gated=True), 66, 1, norms=True),
    "widest": Case(spec(2, 1, 512, rope=base.Rope(512, 1e4)), 33, 20),
    "values narrower": Case(spec(16, 1, 192, 128), 9, 70),
    "window and sinks": Case(spec(4, 1, 64, window=17), 50, 60, sinks=True),
    "window over tiles": Case(spec(2, 1, 64, window=70), 100, 20),
    "gated": Case(spec(4, 2, 64, gated=True), 12, norms=True),
    "values are keys": Case(spec(2, 1, 64, value_norm=True), 8, 2, norms=True, value_of_keys=True)}


@pytest.mark.parametrize("name", CASES)
def test_heads_and_mixture(device, name):
    case = CASES[name]
    s, n, position = case.spec, case.tokens, case.position
    rng = np.random.default_rng(0)
    group, stride = s.heads // s.kv_heads, s.head_dim * (2 if s.gated else 1)
    q = rng.standard_normal((n, s.heads, stride)).astype(np.float32)
    k = rng.standard_normal((n, s.kv_heads, s.head_dim)).astype(np.float32)
    v = k if case.value_of_keys else rng.standard_normal((n, s.kv_heads, s.value_dim)).astype(np.float32)
    cache_k = rng.standard_normal((s.kv_heads, CONTEXT, s.head_dim)).astype(np.float16)
    cache_v = rng.standard_normal((s.kv_heads, CONTEXT, s.value_dim)).astype(np.float16)
    cache_k[:, position:] = cache_v[:, position:] = np.nan  # nobody has written these yet
    vectors = {}
    if case.norms:
        vectors = {"q_norm": rng.standard_normal(s.head_dim * (s.heads if s.whole_norms else 1)).astype(np.float32),
                   "k_norm": rng.standard_normal(s.head_dim * (s.kv_heads if s.whole_norms else 1)).astype(np.float32)}
    if case.sinks:
        vectors["sinks"] = rng.standard_normal(s.heads).astype(np.float32)
    table = rotation_table(s.rope, range(CONTEXT)) if s.rope else None

    card = PromptCard(device, tokens=n + 5)
    memory = card.memory
    held = AttentionBuffers({}, {role: memory.array(role, values) for role, values in vectors.items()},
                            memory.array("rope", table) if table is not None else None, memory.array("k", cache_k),
                            memory.array("v", cache_v))
    projected = {"q": memory.array("query", q), "k": memory.array("key", k)}
    if not case.value_of_keys:
        projected["v"] = memory.array("value", v)
    mixed = memory.buffer("mixed", 4 * (n + 5) * s.heads * s.value_dim)
    launches = heads_and_mixture(card.chunk, s, held, projected, mixed)
    memory.allocate()
    card.run(launches, rows=n, position=position)

    query = placed(q[..., :s.head_dim], vectors.get("q_norm"), s, table, position)
    cache_k[:, position:position + n] = placed(k, vectors.get("k_norm"), s, table, position).transpose(1, 0, 2)
    cache_v[:, position:position + n] = placed(v, None, replace(s, rope=None), None, 0, bare=s.value_norm).transpose(1, 0, 2)
    for buffer, cache in ((held.keys, cache_k), (held.values, cache_v)):
        got = card.read(buffer, cache.shape, np.float16)
        assert np.abs(got[:, :position + n] - cache[:, :position + n].astype(np.float32)).max() <= 4e-3
        assert np.isnan(got[:, position + n:]).all()
    expected = np.zeros((n, s.heads, s.value_dim))
    for t in range(n):
        first = max(0, position + t + 1 - s.window) if s.window else 0
        for h in range(s.heads):
            cells = slice(first, position + t + 1)
            scores = cache_k[h // group, cells].astype(np.float64) @ query[t, h] * s.scale
            if case.sinks:
                scores = np.append(scores, vectors["sinks"][h])
            p = np.exp(scores - scores.max())
            p /= p.sum()
            expected[t, h] = p[:position + t + 1 - first] @ cache_v[h // group, cells].astype(np.float64)
    if s.gated:
        expected /= 1 + np.exp(-q[..., s.head_dim:].astype(np.float64))
    got = card.read(mixed, (n + 5, s.heads, s.value_dim))
    assert np.abs(got[:n] - expected).max() <= 4e-3 * np.abs(expected).max()
    assert not got[n:].any()
    memory.free()


def placed(x, norm, s, table, position, *, bare=False):
    """Heads f64 [T, heads, dim], normed and rotated."""
    x = x.astype(np.float64)
    whole = s.whole_norms and norm is not None
    if norm is not None or bare:
        x = x / np.sqrt((x ** 2).mean((1, 2) if whole else -1, keepdims=True) + EPS)
    if norm is not None:
        x = x * (norm.reshape(1, -1, x.shape[-1]))
    if s.rope is None:
        return x
    half, y = s.rope.dims // 2, x.copy()
    cosine, sine = (table[position:position + len(x), i].astype(np.float64)[:, None] for i in range(2))
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if s.rope.adjacent else (slice(half), slice(half, 2 * half))
    y[..., first] = x[..., first] * cosine - x[..., second] * sine
    y[..., second] = x[..., second] * cosine + x[..., first] * sine
    return y


def test_the_block_beside_the_cpus(device):
    s, d, n = spec(4, 2, 64), 256, 30
    tensors = {"q": ordinary("q", "Q4_K", 256, d, seed=1), "k": ordinary("k", "Q4_K", 128, d, seed=2),
               "v": ordinary("v", "Q6_K", 128, d, seed=3), "output": ordinary("o", "Q8_0", d, 256, seed=4)}
    vectors = {"q_norm": floats("qn", 64, seed=5), "k_norm": floats("kn", 64, seed=6), "q_bias": floats("qb", 256, seed=7),
               "output_bias": floats("ob", d, seed=8)}
    x = np.random.default_rng(9).standard_normal((n, d)).astype(np.float32)
    expected = on_cpu(x, lambda b, rows: b.attention(rows, s, tensors | vectors))
    card = PromptCard(device, tokens=n)
    memory = card.memory
    held = AttentionBuffers({role: memory.weight(t) for role, t in tensors.items()},
                            {role: memory.vector(t) for role, t in vectors.items()},
                            memory.array("rope", rotation_table(s.rope, range(CONTEXT))),
                            memory.buffer("keys", 2 * 2 * CONTEXT * 64), memory.buffer("values", 2 * 2 * CONTEXT * 64))
    out = memory.array("out", np.ones((n, d), np.float32))
    launches = attention(card.chunk, s, held, Source(memory.array("x", x), d, d), Target(out, accumulate=True, scale=2.0))
    memory.allocate()
    card.run(launches, rows=11)
    first = card.read(out, (n, d))[:11]
    card.device.upload(launches[0].arguments["x"].address, x[11:])
    card.device.upload(out.address, np.ones((n, d), np.float32))
    card.run(launches, rows=n - 11, position=11)
    got = np.concatenate([first, card.read(out, (n, d))[:n - 11]])
    assert np.abs(got - (1 + 2 * expected)).max() <= 1e-2 * np.abs(expected).max()
    memory.free()

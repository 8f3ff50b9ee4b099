"""Products of many tokens on the (emulated) card: the bits of the CPU's, in every format, dense and by expert."""

from dataclasses import replace

import numpy as np
import pytest

from engine.backend.cuda.layouts import FLOAT_BYTES, LAYOUTS
from engine.backend.cuda.products import Source
from engine.backend.cuda.prompt.products import TILE_TOKENS, Matrix, Plan, products
from engine.backend.cuda.prompt.records import Biases, Input, round_hidden, round_rows
from tests.kernels.cuda.prompt_card import PromptCard
from tests.kernels.products import Product as CpuProduct
from tests.kernels.products import columns_of, random_inputs, random_weight

ROWS = 37


@pytest.fixture
def card(device):
    made = PromptCard(device, tokens=16)
    yield made
    made.memory.free()


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a.view(np.int32), b.view(np.int32))


@pytest.mark.parametrize("name", LAYOUTS)
def test_products_have_the_bits_of_the_cpu(card, name):
    columns = columns_of(name)
    weight, x = random_weight(name, ROWS, columns), random_inputs(columns)
    with CpuProduct(weight) as cpu:
        expected = cpu.run(x)
    on_card, source = card.memory.weight(weight), card.memory.array("x", x)
    out = card.memory.buffer("out", 4 * 16 * ROWS)
    rounded, launches = round_rows(card.chunk, Source(source, columns, columns), [on_card], name="x")
    launches += products(card.chunk, rounded, [Matrix(on_card, out, ROWS)])
    card.memory.allocate()
    card.run(launches, rows=len(x))
    got = card.read(out, (16, ROWS))
    assert same_bits(got[:len(x)], expected)
    assert not got[len(x):].any()


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q4_1"])
def test_a_tokens_result_does_not_depend_on_how_many_are_with_it(device, name):
    most, columns = 70, 256
    card = PromptCard(device, tokens=most)
    weight, x = random_weight(name, ROWS, columns), np.random.default_rng(0).standard_normal((most, columns)).astype(np.float32)
    with CpuProduct(weight) as cpu:
        expected = np.concatenate([cpu.run(x[k:k + 13]) for k in range(0, most, 13)])
    on_card, source = card.memory.weight(weight), card.memory.array("x", x)
    out = card.memory.buffer("out", 4 * most * ROWS)
    rounded, launches = round_rows(card.chunk, Source(source, columns, columns), [on_card], name="x")
    launches += products(card.chunk, rounded, [Matrix(on_card, out, ROWS)])
    card.memory.allocate()
    for n in (1, 16, 17, 32, 33, 64, 65, 70):
        card.device.fill_zero(out.address, out.n_bytes)
        card.run(launches, rows=n)
        got = card.read(out, (most, ROWS))
        assert same_bits(got[:n], expected[:n]), f"{n} tokens"
        assert not got[n:].any()
    card.memory.free()


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q8_0", "F16"])
def test_products_by_expert(device, name):
    """Tiles of a full and of one token, an expert without tokens, inputs that several routes share, only some rows."""
    tokens, used, experts, first = 70, 2, 4, 5
    card, columns, rng = PromptCard(device, tokens=tokens), 256, np.random.default_rng(0)
    weight, x = random_weight(name, experts, 2 * ROWS, columns), rng.standard_normal((tokens, columns)).astype(np.float32)
    weight = replace(weight, scale=replace(random_weight("F32", experts), name="scale"))
    routes = np.stack([np.where(np.arange(tokens) < TILE_TOKENS + 1, 3, 0), rng.integers(1, 2, tokens)], 1)
    factors = weight.scale.data.view(np.float32)
    order = np.argsort(routes.reshape(-1), kind="stable").astype(np.int32)
    tiles, at = [], 0
    for expert, count in zip(*np.unique(routes, return_counts=True), strict=True):
        tiles += [(expert, at + k, min(TILE_TOKENS, count - k), 0) for k in range(0, count, TILE_TOKENS)]
        at += count
    memory = card.memory
    plan = Plan(memory.array("tiles", np.array(tiles, np.int32)), memory.array("count", np.array([len(tiles)], np.int32)),
                memory.array("pairs", order), len(tiles) + 2, used)
    on_card = memory.weight(weight)
    out = memory.buffer("out", 4 * tokens * used * ROWS)
    rounded, launches = round_rows(card.chunk, Source(memory.array("x", x), columns, columns), [on_card], name="x")
    launches += products(card.chunk, rounded, [Matrix(on_card, out, ROWS, first)], plan=plan)
    memory.allocate()
    card.run(launches, rows=tokens)
    got = card.read(out, (tokens * used, ROWS))
    expected = np.empty_like(got)
    data = weight.data.reshape(experts, 2 * ROWS, -1)
    for expert in np.unique(routes):
        part = replace(weight, shape=(ROWS, columns), data=data[expert, first:first + ROWS], scale=None)
        which = np.flatnonzero(routes.reshape(-1) == expert)
        with CpuProduct(part) as cpu:
            for k in range(0, len(which), 13):
                expected[which[k:k + 13]] = cpu.run(x[which[k:k + 13] // used]) * factors[expert]
    if name in FLOAT_BYTES:
        assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()
    else:
        assert same_bits(got, expected)
    memory.free()


@pytest.mark.parametrize("name", FLOAT_BYTES)
def test_float_products(card, name):
    columns = 151
    weight, x = random_weight(name, ROWS, columns), random_inputs(columns)
    with CpuProduct(weight) as cpu:
        expected = cpu.run(x)
    on_card, source = card.memory.weight(weight), card.memory.array("x", x)
    out = card.memory.buffer("out", 4 * 16 * ROWS)
    rounded, launches = round_rows(card.chunk, Source(source, columns, columns), [on_card], name="x")
    launches += products(card.chunk, rounded, [Matrix(on_card, out, ROWS)])
    card.memory.allocate()
    card.run(launches, rows=len(x))
    size = np.abs(expected).max(-1, keepdims=True)
    assert (np.abs(card.read(out, (16, ROWS))[:len(x)] - expected) <= 1e-5 * size).all()


def test_matrices_of_one_launch_with_norm_bias_and_residual(card):
    columns, rng, n = 512, np.random.default_rng(0), 7
    weights = [replace(random_weight("Q4_K", rows, columns, seed=rows), name=f"w{rows}") for rows in (129, 8, 3)]
    x, norm = rng.standard_normal((n, columns)).astype(np.float32), rng.standard_normal(columns).astype(np.float32)
    normed = (x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6) * norm).astype(np.float32)
    memory = card.memory
    biases = [rng.standard_normal(w.shape[0]).astype(np.float32) for w in weights]
    matrices = [Matrix(memory.weight(w), memory.array("out", np.full((16, w.shape[0]), 3, np.float32)), w.shape[0],
                       bias=memory.array("bias", bias))
                for w, bias in zip(weights, biases, strict=True)]
    source = Source(memory.array("x", x), columns, columns, memory.array("norm", norm), 1e-6)
    rounded, launches = round_rows(card.chunk, source, [m.weight for m in matrices], name="x", floats=True)
    launches += products(card.chunk, rounded, matrices, accumulate=True, scale=0.5)
    assert len(launches) == 2
    memory.allocate()
    card.run(launches, rows=n)
    floats = card.read(rounded.floats, (n, columns))
    assert np.abs(floats - normed).max() <= 1e-5 * np.abs(normed).max()
    for matrix, weight, bias in zip(matrices, weights, biases, strict=True):
        with CpuProduct(weight) as cpu:
            expected = 3 + np.float32(0.5) * (cpu.run(floats) + bias)
        got = card.read(matrix.out, (16, weight.shape[0]))
        assert same_bits(got[:n], expected)
        assert (got[n:] == 3).all()


@pytest.mark.parametrize("kind", [256, 32])
def test_rounding_keeps_what_is_no_number(card, kind):
    columns, name = 512, {256: "Q4_K", 32: "Q8_0"}[kind]
    x = np.ones((3, columns), np.float32)
    x[1, 300] = np.nan
    weight = random_weight(name, 4, columns)
    on_card, source = card.memory.weight(weight), card.memory.array("x", x)
    out = card.memory.buffer("out", 4 * 16 * 4)
    rounded, launches = round_rows(card.chunk, Source(source, columns, columns), [on_card], name="x")
    launches += products(card.chunk, rounded, [Matrix(on_card, out, 4)])
    card.memory.allocate()
    card.run(launches, rows=3)
    assert np.isnan(card.read(out, (3, 4))).any(1).tolist() == [False, True, False]


@pytest.mark.parametrize("activation", [0, 1, 2])
def test_activation_and_rounding(card, activation):
    columns, per_token, n, rng = 320, 2, 5, np.random.default_rng(activation)
    gate, up = 4 * rng.standard_normal((2, n * per_token, columns)).astype(np.float32)
    biases = rng.standard_normal((2, 3, columns)).astype(np.float32)
    ids = rng.integers(0, 3, n * per_token).astype(np.int32)
    memory = card.memory
    names = ("gate", "up", "gate_bias", "up_bias", "ids")
    buffers = {k: memory.array(k, v) for k, v in zip(names, (gate, up, *biases, ids), strict=True)}
    weights = [memory.weight(random_weight(name, 3, columns)) for name in ("Q8_0", "F32")]
    hidden, launches = round_hidden(
        card.chunk, buffers["gate"], buffers["up"], columns, weights, activation=activation, name="h", per_token=per_token,
        biases=Biases(buffers["gate_bias"], buffers["up_bias"], buffers["ids"]))
    assert isinstance(hidden, Input)
    memory.allocate()
    card.run(launches, rows=n)
    g, u = (v.astype(np.float64) + bias[ids] for v, bias in zip((gate, up), biases, strict=True))
    if activation == 2:
        g, u = np.minimum(g, 7), np.clip(u, -7, 7) + 1
    z = {0: g, 1: 2 * 0.7978845608 * g * (1 + 0.044715 * g * g), 2: 1.702 * g}[activation]
    expected = g / (1 + np.exp(-z)) * u
    got = card.read(hidden.floats, (n * per_token, columns))
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()
    records = card.read(hidden.records[32], (n * per_token, 2, 320), np.uint8)
    scales = np.ascontiguousarray(records[..., 256:288]).view(np.float32).reshape(n * per_token, 16)[:, :10]
    assert np.abs(scales - np.abs(expected).reshape(n * per_token, 10, 32).max(-1) / 127).max() <= 1e-3 * scales.max()

"""Every weight format: products against float64 on the same rounded activations, rows, rounding, and equal bits everywhere."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from products import (
    FLOATS,
    NAMES,
    ROWS,
    TOKENS,
    Product,
    columns_of,
    dequantize,
    digest,
    embedded,
    exact_parts,
    random_inputs,
    random_weight,
)

from engine.backend.cpu import isa, unpack

BOUND = 1e-5  # of the sum of |weight * activation|


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(np.ascontiguousarray(a).view(np.int32), np.ascontiguousarray(b).view(np.int32))


def rounded(x: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales, sums and weighted sums of f32 [rows, columns] by the rules of the activation kinds."""
    one, limit = np.float32(1), np.float32(127)
    if kind == "q8_k":
        blocks = x.reshape(len(x), -1, 256)
        extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(2, keepdims=True), 2)
        inverse = np.divide(-limit, extreme, out=np.zeros_like(extreme), where=extreme != 0)
        codes = np.minimum(np.rint(inverse * blocks), 127).astype(np.int8)
        scales = np.divide(one, inverse, out=np.zeros_like(inverse), where=inverse != 0)
        sums = codes.reshape(len(x), -1, 16).sum(2, dtype=np.int32)
        return codes.reshape(x.shape), scales[..., 0], sums, np.zeros(0, np.float32)
    blocks = x.reshape(len(x), -1, 32)
    d = np.abs(blocks).max(2, keepdims=True) / limit
    codes = np.rint(blocks * np.divide(one, d, out=np.zeros_like(d), where=d > 0)).astype(np.int8)
    sums = codes.reshape(len(x), -1, 16 if kind == "q8_0_sums_16" else 32).sum(2, dtype=np.int32)
    total = codes.sum(2, dtype=np.int32)
    weighted = (d[..., 0] * total.astype(np.float32)).astype(np.float16).astype(np.float32)
    return codes.reshape(x.shape), d[..., 0].astype(np.float16).astype(np.float32), sums, weighted


def cast(x: np.ndarray, name: str) -> np.ndarray:
    """x rounded to the type of float weights, as f32."""
    if name == "F16":
        return x.astype(np.float16).astype(np.float32)
    if name == "BF16":  # the nearer neighbour, the even one of two as near
        bits = x.view(np.uint32)
        below = (bits & 0xFFFF0000).view(np.float32).astype(np.float64)
        above = ((bits & 0xFFFF0000) + 0x10000).view(np.float32).astype(np.float64)
        up = np.abs(above - x) < np.abs(x - below)
        tie = np.abs(above - x) == np.abs(x - below)
        return np.where(up | tie & (bits >> 16 & 1).astype(bool), above, below).astype(np.float32)
    return x


def reference(weight, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Products in float64 [rows of x, rows of the weight], and the sums of magnitudes that bound their error."""
    with_d, with_minimum = exact_parts(weight)
    name = weight.format.name
    if name in FLOATS:
        a = cast(x, name).astype(np.float64)
        return a @ with_d.T, np.abs(a) @ np.abs(with_d).T
    kind = unpack.FORMATS[name].activation
    codes, scales, _, weighted = rounded(x, kind)
    a = codes * np.repeat(scales.astype(np.float64), x.shape[1] // scales.shape[1], axis=1)
    if kind != "q8_1":
        return a @ (with_d + with_minimum).T, np.abs(a) @ np.abs(with_d + with_minimum).T
    per_block = with_minimum[:, ::32]  # the minimum of each block, which multiplies the weighted sum as it was rounded
    s = weighted.astype(np.float64)
    return a @ with_d.T + s @ per_block.T, np.abs(a) @ np.abs(with_d).T + np.abs(s) @ np.abs(per_block).T


def assert_close(ours: np.ndarray, expected: tuple[np.ndarray, np.ndarray]) -> None:
    values, magnitude = expected
    assert np.isfinite(ours).all()
    excess = np.abs(ours - values) - BOUND * magnitude
    assert excess.max() <= 0, f"{np.unravel_index(excess.argmax(), excess.shape)}: off by {excess.max():.2e} too much"


@pytest.mark.parametrize("name", NAMES)
def test_products_are_the_references_for_any_number_of_tokens(name):
    weight, x = random_weight(name, ROWS, columns_of(name)), random_inputs(columns_of(name))
    with Product(weight) as product:
        one_by_one = np.concatenate([product.run(x[t:t + 1]) for t in range(TOKENS)])
        assert_close(one_by_one, reference(weight, x))
        for n in (2, 3, 4, 5, 8, TOKENS):
            assert same_bits(product.run(x[:n]), one_by_one[:n]), f"{n} tokens"
    with Product(weight, row_range=(7, 24), workers=1) as product:
        assert same_bits(product.run(x)[:, :17], one_by_one[:, 7:24])


@pytest.mark.parametrize("name", NAMES)
def test_experts_compute_what_a_matrix_alone_computes(name):
    experts, used, columns = 5, 2, columns_of(name)
    weight, x = random_weight(name, experts, ROWS, columns), random_inputs(columns)
    alone = []
    for expert in range(experts):
        part = random_weight(name, ROWS, columns)
        part.data[:] = weight.data[expert]
        with Product(part) as product:
            alone.append(product.run(x))
    likely = np.array([0.1, 0.6, 0, 0.2, 0.1])  # groups of many tokens, of few, of none; a token never takes one twice
    rng = np.random.default_rng(5)
    routes = np.stack([rng.choice(experts, used, replace=False, p=likely) for _ in range(TOKENS)])
    with Product(weight, used=used) as product:
        out = product.run(x, routes=routes).reshape(TOKENS, used, ROWS)
    for t, r in np.ndindex(TOKENS, used):
        assert same_bits(out[t, r], alone[routes[t, r]][t]), f"token {t}, route {r}"
    every_route = x[np.arange(TOKENS * used) % TOKENS]
    with Product(weight, used=used, many=True) as product:
        out = product.run(every_route, routes=routes)
    for i, expert in enumerate(routes.reshape(-1)):
        assert same_bits(out[i], alone[expert][i % TOKENS]), f"pair {i}"


@pytest.mark.parametrize("name", [*FLOATS, *unpack.FORMATS])
def test_embedding_rows_are_dequantized_to_the_bit(name):
    table = random_weight(name, 300, columns_of(name), seed=7)
    expected = dequantize(table)
    assert np.isfinite(expected).all()
    assert same_bits(embedded(table), expected)


@pytest.mark.parametrize("name", ["F16", "BF16", "Q8_0", "Q4_1", "Q4_K", "NVFP4"])
def test_activations_are_rounded_by_the_rules(name):
    columns = columns_of(name)
    x = random_inputs(columns)
    with Product(random_weight(name, 1, columns)) as product:
        product.run(x)
        buffers = product.backend.program.named
        if name in FLOATS:
            held = buffers[f"x.{name.lower()}"].view(np.float32)[:x.size]
            assert same_bits(held, cast(x, name).reshape(-1))
            return
        kind = unpack.FORMATS[name].activation
        for part, expected in zip(("codes", "scales", "sums", "weighted"), rounded(x, kind), strict=True):
            if part != "weighted" or kind == "q8_1":
                held = buffers[f"x.{kind}.{part}"].view(expected.dtype)[:expected.size]
                assert np.array_equal(held, expected.reshape(-1)), part


@pytest.mark.parametrize(("tier", "names"), [
    ("plain", ["Q4_K", "Q8_0", "IQ4_NL", "NVFP4"]), ("avx2", ["Q6_K", "Q2_0", "F16", "IQ2_S"])])
def test_lower_instruction_sets_give_the_same_bits(tier, names):
    if isa.TIERS.index(tier) >= isa.TIERS.index(isa.tier()):
        pytest.skip(f"the kernels here are already those of {isa.tier()}")
    script = Path(__file__).with_name("products.py")
    root = script.parents[2]
    done = subprocess.run([sys.executable, str(script), *names], capture_output=True, text=True, check=False,
                          env=os.environ | {"TERRACE_ISA": tier, "PYTHONPATH": str(root)}, cwd=root)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [word for name in names for word in (name, digest(name))]

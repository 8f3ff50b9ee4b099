"""Weights in planes on the (emulated) card: products with a window's tokens have the bits of the CPU's, in every format."""

from dataclasses import replace

import numpy as np
import pytest

from engine.backend.cuda.backend import WINDOW_DTYPE
from engine.backend.cuda.blocks.plain import EmbedBlock
from engine.backend.cuda.layouts import FLOAT_BYTES, LAYOUTS
from engine.backend.cuda.memory import Memory
from engine.backend.cuda.products import Product, Source, products
from tests.kernels.products import Product as CpuProduct
from tests.kernels.products import columns_of, embedded, random_inputs, random_weight

ROWS = 11


class Card:
    """Memory and a window block on a device, for launches by hand."""

    def __init__(self, device) -> None:
        self.device, self.memory = device, Memory(device)
        self.window = self.memory.buffer("window", WINDOW_DTYPE.itemsize)
        self.history = self.memory.buffer("history", 4 * 64)

    def set_window(self, rows: int, tokens=()) -> None:
        values = np.zeros(1, WINDOW_DTYPE)
        values["rows"], values["out_rows"] = rows, rows
        values["tokens"][0, :len(tokens)] = tokens
        self.device.upload(self.window.address, values)

    def run(self, launches) -> None:
        for launch in launches:
            self.device.run(launch)
        self.device.synchronize()

    def read(self, buffer, shape) -> np.ndarray:
        values = np.empty(shape, np.float32)
        self.device.download(buffer.address, values)
        return values


@pytest.fixture
def card(device):
    made = Card(device)
    yield made
    made.memory.free()


@pytest.mark.parametrize("name", LAYOUTS)
def test_products_have_the_bits_of_the_cpu(card, name):
    columns = columns_of(name)
    weight, x = random_weight(name, ROWS, columns), random_inputs(columns)[:8]
    with CpuProduct(weight) as cpu:
        expected = np.concatenate([cpu.run(row[None]) for row in x])
    on_card, source = card.memory.weight(weight), card.memory.array("x", x)
    out = card.memory.buffer("out", 4 * 8 * ROWS)
    card.memory.allocate()
    for tokens, rows in ((1, 1), (2, 2), (4, 3), (8, 8)):
        card.set_window(rows)
        card.device.fill_zero(out.address, out.n_bytes)
        card.run(products(card.window, Source(source, columns, columns), [Product(on_card, out)], tokens, multiprocessors=1))
        got = card.read(out, (8, ROWS))
        assert np.array_equal(got[:rows], expected[:rows]), f"windows of {tokens}"
        assert not got[rows:].any()


@pytest.mark.parametrize("name", FLOAT_BYTES)
def test_float_products(card, name):
    columns = 151
    weight, x = random_weight(name, ROWS, columns), random_inputs(columns)[:8]
    with CpuProduct(weight) as cpu:
        expected = np.concatenate([cpu.run(row[None]) for row in x])
    on_card, source = card.memory.weight(weight), card.memory.array("x", x)
    out = card.memory.buffer("out", 4 * 8 * ROWS)
    card.memory.allocate()
    card.set_window(7)
    card.run(products(card.window, Source(source, columns, columns), [Product(on_card, out)], 8, multiprocessors=1))
    size = np.abs(expected).max(-1, keepdims=True)
    assert (np.abs(card.read(out, (8, ROWS))[:7] - expected[:7]) <= 1e-5 * size[:7]).all()


@pytest.mark.parametrize("name", [*LAYOUTS, *FLOAT_BYTES])
def test_embeddings_have_the_bits_of_the_cpu(card, name):
    columns = columns_of(name)
    table = random_weight(name, 8, columns)
    expected = embedded(table)
    card.max_context = 64
    out = card.memory.buffer("out", 4 * 8 * columns)
    block = EmbedBlock(card, card.memory.weight(table), out)
    card.memory.allocate()
    card.set_window(8, range(8))
    card.run(block.window(8))
    assert np.array_equal(card.read(out, (8, columns)), expected)


def test_a_bias_a_residual_and_a_norm(card):
    columns, rng = 512, np.random.default_rng(0)
    weight = random_weight("Q4_K", ROWS, columns)
    x, norm, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, columns), (columns,), (ROWS,)))
    normed = x / np.sqrt((x.astype(np.float64) ** 2).mean() + 1e-6).astype(np.float32) * norm
    with CpuProduct(weight) as cpu:
        expected = 3 + 0.5 * (cpu.run(normed.astype(np.float32)) + bias)
    on_card, source = card.memory.weight(weight), card.memory.array("x", x)
    out = card.memory.array("out", np.full((1, ROWS), 3, np.float32))
    product = Product(on_card, out, card.memory.array("bias", bias))
    normed_source = Source(source, columns, columns, card.memory.array("norm", norm), 1e-6)
    card.memory.allocate()
    card.set_window(1)
    card.run(products(card.window, normed_source, [product], 1, multiprocessors=2, accumulate=True, scale=0.5))
    got = card.read(out, (1, ROWS))
    assert np.abs(got - expected).max() <= 2e-2 * np.abs(expected).max()


def test_matrices_of_one_launch_keep_apart(card):
    columns = 256
    weights = [replace(random_weight("Q4_K", rows, columns, seed=rows), name=f"w{rows}") for rows in (5, 8, 3)]
    x = random_inputs(columns)[:2]
    expected = []
    for weight in weights:
        with CpuProduct(weight) as cpu:
            expected.append(cpu.run(x))
    source = card.memory.array("x", x)
    wanted = [Product(card.memory.weight(w), card.memory.buffer("out", 8 * w.shape[0])) for w in weights]
    card.memory.allocate()
    card.set_window(2)
    launches = products(card.window, Source(source, columns, columns), wanted, 2, multiprocessors=1)
    assert len(launches) == 1
    card.run(launches)
    for product, values in zip(wanted, expected, strict=True):
        assert np.array_equal(card.read(product.out, values.shape), values)

"""Weights in planes on the (emulated) card: products with a window's tokens have the bits of the CPU's, in every format."""

from dataclasses import replace

import numpy as np
import pytest

from engine.backend.cuda.backend import WINDOW_DTYPE
from engine.backend.cuda.blocks.plain import EmbedBlock
from engine.backend.cuda.layouts import FLOAT_BYTES, LAYOUTS
from engine.backend.cuda.memory import Memory
from engine.backend.cuda.products import Product, Source, Streams, products
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
@pytest.mark.parametrize("columns", [151, 4104])  # a warp takes a row, or a block
def test_float_products(card, name, columns):
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


@pytest.mark.parametrize("names", [("Q4_K",) * 3, ("Q4_K", "F16", "Q8_0", "Q5_1", "F16", "Q8_0"), ("F32", "BF16")])
def test_matrices_of_one_launch_keep_apart(card, names):
    columns, x = 256, random_inputs(256)[:2]
    weights = [replace(random_weight(name, rows, columns, seed=rows), name=f"w{rows}")
               for name, rows in zip(names, (5, 8, 3, 40, 1, 2), strict=False)]
    expected = []
    for weight in weights:
        with CpuProduct(weight) as cpu:
            expected.append(np.concatenate([cpu.run(row[None]) for row in x]))
    source = card.memory.array("x", x)
    wanted = [Product(card.memory.weight(w), card.memory.buffer("out", 8 * w.shape[0])) for w in weights]
    card.memory.allocate()
    card.set_window(2)
    launches = products(card.window, Source(source, columns, columns), wanted, 2, multiprocessors=1)
    assert len(launches) == 1
    card.run(launches)
    for name, product, values in zip(names, wanted, expected, strict=True):
        got = card.read(product.out, values.shape)
        assert np.abs(got - values).max() <= (0 if name in LAYOUTS else 1e-5 * np.abs(values).max())


def test_more_matrices_than_a_launch_has_room_for(card):
    weights = [replace(random_weight(name, 3, 256, seed=i), name=f"w{i}")
               for i, name in enumerate(("Q4_0", "Q8_0", "Q5_1", "Q4_0", "Q6_K", "Q4_K", "F16", "Q4_0", "Q4_0"))]
    wanted = [Product(card.memory.weight(w), card.memory.buffer("out", 32)) for w in weights]
    launches = products(card.window, Source(wanted[0].out, 256, 256), wanted, 2, multiprocessors=1)
    written = [buffer for launch in launches for name, buffer in launch.arguments.items() if name.startswith("out") and buffer]
    assert sorted(map(id, written)) == sorted(id(product.out) for product in wanted)
    assert len(launches) == 2


@pytest.mark.parametrize("name", ["Q8_0", "F32"])
def test_a_norm_of_parts_and_a_result_for_every_stream(card, name):
    parts, columns, rng = 4, 128, np.random.default_rng(1)
    wide = parts * columns
    weight = random_weight(name, ROWS, wide)
    x, norm, inject, streams = (rng.standard_normal(shape).astype(np.float32)
                                for shape in ((2, wide), (wide,), (2, parts), (2, parts, ROWS)))
    factors = 1 / np.sqrt((x.astype(np.float64).reshape(2, parts, -1) ** 2).mean(-1) + 1e-6)
    normed = (x.reshape(2, parts, -1) * factors[..., None]).reshape(2, wide) * norm
    with CpuProduct(weight) as cpu:
        y = np.concatenate([cpu.run(row[None].astype(np.float32)) for row in normed])
    out, left = card.memory.array("out", streams), card.memory.buffer("factors", 4 * 2 * parts)
    source = Source(card.memory.array("x", x), wide, wide, card.memory.array("norm", norm), 1e-6, parts=parts, factors=left)
    product = Product(card.memory.weight(weight), card.memory.buffer("unused", 16))
    to = Streams(out, card.memory.array("inject", inject), parts)
    card.memory.allocate()
    card.set_window(2)
    card.run(products(card.window, source, [product], 2, multiprocessors=2, accumulate=True, streams=to))
    assert np.allclose(card.read(left, (2, parts)), factors, rtol=1e-6)
    assert np.abs(card.read(out, streams.shape) - streams - inject[..., None] * y[:, None]).max() <= 2e-2 * np.abs(y).max()

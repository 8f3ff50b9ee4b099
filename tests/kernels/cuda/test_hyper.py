"""Reading hyper-connections on the (emulated) card: two launches, whatever the formats, and the same bits in every window."""

import numpy as np
import pytest

from engine.backend.base import HyperConnection
from engine.backend.cuda.blocks.hyper import HyperRead
from engine.backend.cuda.products import WINDOWS, Product
from engine.gguf import FORMATS, Tensor
from tests.kernels.cuda.test_products import Card
from tests.kernels.flash_blocks import allocate
from tests.kernels.products import Product as CpuProduct
from tools.simple_blocks import encode

STREAMS, WIDTH, EPS = 4, 64, 1e-6
WIDE = STREAMS * WIDTH


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def matrix(role: str, name: str, *shape: int) -> Tensor:
    values = np.random.default_rng(len(role)).standard_normal(shape).astype(np.float32) / np.sqrt(shape[-1], dtype=np.float32)
    data = encode(values, name).data
    held = allocate(data.shape, np.uint8)  # with room behind it, as a mapped file has
    held[:] = data
    return Tensor(name=role, shape=shape, format=FORMATS[name], n_bytes=held.nbytes, shard=0, offset=0, data=held)


def product(weight, rows) -> np.ndarray:
    with CpuProduct(weight) as cpu:
        return np.concatenate([cpu.run(row[None].astype(np.float32)) for row in rows]).astype(np.float64)


@pytest.mark.parametrize(("formats", "rank"), [
    (("Q8_0", "F32", "Q8_0"), 96), (("F32", "F32", "F32"), 20), (("TQ2_0", "F16", "IQ4_XS"), 512),
    (("BF16", None, "Q5_1"), 320)])
def test_a_block_reads_the_mixture_of_the_streams(device, formats, rank):
    card, spec, tokens = Card(device), HyperConnection(STREAMS, EPS), max(WINDOWS)
    card.multiprocessors, rng = 2, np.random.default_rng(rank)
    down, up = matrix("down", formats[0], rank, WIDE), matrix("up", formats[2], WIDE, rank)
    inject = matrix("inject", formats[1], STREAMS, WIDE) if formats[1] else None
    x, norm = rng.standard_normal((tokens, WIDE)).astype(np.float32), rng.standard_normal(WIDE).astype(np.float32)
    parts = x.reshape(tokens, STREAMS, WIDTH).astype(np.float64)
    normed = parts / np.sqrt((parts**2).mean(-1, keepdims=True) + EPS) * norm.reshape(STREAMS, WIDTH)
    low = product(down, normed.reshape(tokens, WIDE)) / STREAMS
    gates = sigmoid(product(up, low * sigmoid(low)).reshape(normed.shape))
    memory = card.memory
    written = memory.buffer("inject", 4 * tokens * STREAMS)
    block = HyperRead(
        card, spec, memory.array("x", x), WIDE, memory.array("norm", norm), memory.buffer("factors", 4 * tokens * STREAMS),
        Product(memory.weight(down), memory.buffer("low", 4 * tokens * rank)),
        Product(memory.weight(inject), written) if inject else None, memory.weight(up),
        memory.buffer("out", 4 * tokens * WIDTH))
    memory.allocate()
    whole = None
    for size in reversed(WINDOWS):
        launches = block.window(size)
        assert len(launches) == 2
        card.set_window(size)
        device.fill_zero(block.out.address, block.out.n_bytes)
        card.run(launches)
        mixed = card.read(block.out, (tokens, WIDTH))
        if whole is None:
            whole, expected = mixed, (gates * normed).mean(1)
            assert np.abs(mixed - expected).max() <= 2e-2 * np.abs(expected).max()
            if inject:
                weights = 2 * sigmoid(product(inject, normed.reshape(tokens, WIDE)) / STREAMS)
                assert np.abs(card.read(written, weights.shape) - weights).max() <= 1e-2
        assert np.array_equal(mixed[:size], whole[:size]) and not mixed[size:].any()
    memory.free()

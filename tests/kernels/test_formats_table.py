"""The table of formats as a whole: sizes, what is refused, what is made only when asked for, scales beside a weight."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from products import NAMES, ROWS, TOKENS, Product, columns_of, dequantize, random_inputs, random_weight

from engine.backend.cpu import unpack
from engine.backend.cpu.backend import CpuBackend
from engine.errors import BadModel
from engine.gguf import FORMATS, Tensor
from tools.simple_blocks import encode

INTERNAL = ("F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K")  # never those of a weight


def float_tensor(name: str, values) -> Tensor:
    data = np.array(values, np.float32)
    return Tensor(name, data.shape, FORMATS["F32"], data.nbytes, 0, 0, data.view(np.uint8))


def test_blocks_have_the_sizes_of_the_file_format():
    for name, form in unpack.FORMATS.items():
        stored = FORMATS[name]
        assert (form.name, form.elements, form.block_bytes) == (stored.name, stored.block_elements, stored.block_bytes)


def test_every_format_of_weights_has_a_kernel_but_one():
    assert {form.name for form in FORMATS.values()} - set(NAMES) - set(INTERNAL) == {"Q1_0"}


@pytest.mark.parametrize("name", ["Q1_0", "I32"])
def test_a_format_without_a_kernel_is_refused_by_the_tensors_name(name):
    form = FORMATS[name]
    columns = 2 * form.block_elements
    weight = Tensor("blk.3.ffn_up.weight", (4, columns), form, 8 * form.block_bytes, 0, 0,
                    np.zeros((4, 2 * form.block_bytes), np.uint8))
    backend = CpuBackend(workers=1, max_context=64, max_rows=TOKENS)
    try:
        with pytest.raises(BadModel, match=f"blk.3.ffn_up.weight: the format {name} has no kernel"):
            backend.linear(backend.rows("x", columns), weight, backend.rows("out", 4))
        with pytest.raises(BadModel, match=f"blk.3.ffn_up.weight: the format {name} has no kernel"):
            backend.embed(weight)
    finally:
        backend.close()


def test_codebooks_are_not_made_by_an_import():
    script = """
import gguf
from engine.backend.cpu import isa
isa.prepare_numba()
from engine.backend.cpu import unpack
assert "IQ2_XXS" in unpack.FORMATS and "IQ3_S" in list(unpack.FORMATS)
assert gguf.quants.IQ2_XXS.grid is None and gguf.quants.IQ3_S.grid is None
assert unpack.FORMATS["IQ3_S"] is unpack.FORMATS["IQ3_S"]
assert gguf.quants.IQ2_XXS.grid is None and gguf.quants.IQ3_S.grid is not None
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False,
                          cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["F32", "NVFP4"])
def test_a_scale_beside_a_weight_multiplies_the_result(name):
    columns = columns_of(name)
    weight, x = random_weight(name, ROWS, columns), random_inputs(columns)
    with Product(weight) as product:
        plain = product.run(x)
    with Product(replace(weight, scale=float_tensor("a.scale", [-0.3]))) as product:
        for n in (1, TOKENS):
            assert np.array_equal(product.run(x[:n]), plain[:n] * np.float32(-0.3))
    experts = random_weight(name, 3, ROWS, columns)
    routes = np.stack([np.arange(TOKENS) % 3, (np.arange(TOKENS) + 1) % 3], axis=1)
    routes[:2] = [[0, 2], [0, 2]]  # expert 1 with fewer tokens than the others
    factors = np.array([2.5, -0.1, 0], np.float32)
    with Product(experts, used=2) as product:
        plain = product.run(x, routes=routes)
    with Product(replace(experts, scale=float_tensor("b.scale", factors)), used=2) as product:
        assert np.array_equal(product.run(x, routes=routes), plain * factors[routes.reshape(-1), None])


@pytest.mark.parametrize(("shape", "count"), [((ROWS,), 2), ((3, ROWS), 1)])
def test_a_scale_of_another_size_is_refused(shape, count):
    weight = random_weight("NVFP4", *shape, columns_of("NVFP4"))
    with pytest.raises(BadModel, match=r"c.scale: its shape is"):
        Product(replace(weight, scale=float_tensor("c.scale", np.ones(count))), used=2 if len(shape) > 1 else 0)


@pytest.mark.parametrize(("name", "error"), [("IQ4_NL", 0.1), ("IQ4_XS", 0.1), ("NVFP4", 0.11), ("MXFP4", 0.13)])
def test_encoders_of_test_data_come_near_the_values(name, error):
    x = np.random.default_rng(0).standard_normal((6, 512)).astype(np.float32)
    x[0, :256] = 0
    stored = encode(x, name)
    got = dequantize(Tensor("x", x.shape, FORMATS[name], 0, 0, 0, stored.data))
    assert np.sqrt(np.mean((got - x) ** 2)) < error
    assert not got[0, :256].any()

"""Whole models on the (emulated) card beside the CPU backend: logits, windows, the model's own picks, launches a layer."""

from dataclasses import replace

import numpy as np
import pytest

from engine.backend.base import Draw
from engine.backend.cuda.backend import CudaBackend
from engine.errors import BadModel
from engine.gguf import open_model
from engine.messages import Sampling
from engine.model.base import Hyper, Tensors
from engine.model.registry import architecture
from engine.sampling.sampler import pick
from tests.kernels.conftest import open_session
from tests.kernels.cuda.conftest import THOROUGH
from tests.kernels.test_architectures import divergence
from tools.make_tiny_gguf import write_tiny

CONTEXT = 96
QUANTIZED = {"*_exps.weight": "Q4_0", "*_shexp.weight": "Q4_0", "*attn_?.weight": "Q8_0", "output.weight": "Q8_0"}
MIXTURES = ("qwen3moe", "qwen2moe", "granitemoe", "olmoe", "gpt-oss", "qwen4exp", "qwen35moe", "gemma4")
# every expert is chosen, so that no near tie can make two correct readings differ
MODELS = {name: {"arch": name, "preset": "blocks", "store": QUANTIZED, "experts": 4, "experts_used": 4} for name in MIXTURES}
MODELS |= {name: {"arch": name} for name in ("llama", "qwen3")}


def described(device, path, *, max_rows: int = 8, **settings) -> tuple[CudaBackend, object]:
    """A backend with the model at a path, and the open files."""
    files = open_model(path)
    backend = CudaBackend(device, max_context=CONTEXT, max_rows=max_rows, **settings)
    hyper = Hyper(files)
    architecture(hyper.arch).describe(backend, hyper, Tensors(files.tensors))
    return backend, files


@pytest.fixture(params=MODELS)
def model(request, tmp_path):
    return write_tiny(tmp_path / "m.gguf", **MODELS[request.param])[0]


def test_logits_are_those_of_the_cpu_however_the_text_is_cut(model, device):
    cuts = ((1, 2, 4, 8, 3, 4), (8, 8, 6)) if THOROUGH else ((1, 2, 4, 3), (8, 2))
    backend, files = described(device, model)
    backend.prepare()
    tokens = np.random.default_rng(0).integers(0, 60, sum(cuts[0])).astype(np.int32)
    with open_session(model, max_context=CONTEXT, backend="cpu") as cpu:
        expected = np.concatenate([cpu.step(tokens[i:i + 8], logits="all").copy() for i in range(0, len(tokens), 8)])

    def read(sizes) -> np.ndarray:
        for entry in backend.state:
            entry.array.fill(0)
        ends = np.cumsum(sizes)
        return np.concatenate([backend.run(tokens[end - size:end], position=end - size, out_rows=size)
                               for size, end in zip(sizes, ends, strict=True)])

    logits = read(cuts[0])
    apart = divergence(expected, logits)  # keys in f16 and other roundings, which int8 activations amplify
    assert apart.max() <= 2e-2 and np.median(apart) <= 3e-3, apart
    assert np.array_equal(read(cuts[1]), logits)
    backend.close()
    files.close()


@pytest.mark.parametrize("name", ["qwen3moe"])
def test_picks_of_the_model_are_the_argmax(name, device, tmp_path):
    backend, files = described(device, write_tiny(tmp_path / "m.gguf", **MODELS[name])[0])
    tokens = [int(backend.run(np.array([7], np.int32), position=0, out_rows=1)[0].argmax())]
    for position in range(1, 8):
        tokens.append(int(backend.run(np.array(tokens[-1:], np.int32), position=position, out_rows=1)[0].argmax()))
    picked = list(backend.run_ahead(tokens[0], position=1, limit=7, stop_ids=()))
    assert [token for token, _ in picked] == tokens[1:]
    stop = tokens[4]
    short = list(backend.run_ahead(tokens[0], position=1, limit=7, stop_ids=(stop,)))
    assert [token for token, _ in short] == tokens[1:tokens.index(stop, 1) + 1]
    assert short[-1][1] <= 1 + len(short) + 1  # one window more at most
    backend.close()
    files.close()


@pytest.mark.parametrize("name", ["qwen3moe"])
def test_draws_of_the_model_are_those_of_the_sampler(name, device, tmp_path):
    backend, files = described(device, write_tiny(tmp_path / "m.gguf", **MODELS[name])[0])
    settings = {"top_k": 40, "top_p": 0.95, "min_p": 0.01, "temperature": 1.3}
    tokens = [7]
    for position in range(8):
        row = backend.run(np.array(tokens[-1:], np.int32), position=position, out_rows=1)[0]
        tokens.append(pick(row, Sampling(**settings), seed=11, position=position + 1))
    drawn = list(backend.run_ahead(7, position=0, limit=8, stop_ids=(), draw=Draw(**settings, seed=11)))
    assert [token for token, _ in drawn] == tokens[1:]
    assert len(set(tokens)) > 4
    backend.close()
    files.close()


def test_a_layer_is_few_kernels_and_graphs_change_nothing(device, tmp_path):
    made = []
    for layers in (1, 2):
        path = write_tiny(tmp_path / f"{layers}.gguf", **{**MODELS["qwen3moe"], "layers": layers})[0]
        made.append(described(device, path, graphs=layers == 1))
    (one, _), (two, _) = made
    assert len(two.launches(1)) - len(one.launches(1)) == 6  # projections, attention, output, router, gate and up, down
    tokens = np.array([3, 1, 4], np.int32)
    logits = two.run(tokens, position=0, out_rows=3)
    again, files = described(device, tmp_path / "2.gguf")
    assert np.array_equal(again.run(tokens, position=0, out_rows=3), logits)
    for backend, opened in (*made, (again, files)):
        backend.close()
        opened.close()


def test_a_factor_of_a_matrix_is_refused(device, tmp_path):
    path = write_tiny(tmp_path / "m.gguf", "qwen3moe", preset="blocks", store=QUANTIZED)[0]
    files = open_model(path)
    tensor = files.tensors["blk.0.attn_q.weight"]
    factor = replace(files.tensors["blk.0.attn_norm.weight"], name="blk.0.attn_q.scale")
    with pytest.raises(BadModel, match=r"blk\.0\.attn_q\.scale"):
        CudaBackend(device, max_context=CONTEXT, max_rows=32).weight(replace(tensor, scale=factor))
    files.close()


def test_an_activation_without_a_kernel_is_refused(device, tmp_path):
    files = open_model(write_tiny(tmp_path / "m.gguf", "qwen3")[0])
    backend = CudaBackend(device, max_context=CONTEXT, max_rows=8)
    x = backend.embed(files.tensors["token_embd.weight"])
    parts = {role: files.tensors[f"blk.0.ffn_{role}.weight"] for role in ("up", "down")}
    with pytest.raises(BadModel, match=r"ffn_down\.weight: the activation squared_relu"):
        backend.feed_forward(x, parts, activation="squared_relu")
    files.close()

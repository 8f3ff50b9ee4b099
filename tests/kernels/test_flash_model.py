"""qwen4exp as a whole: against float64 where sparse attention drops blocks, in mixed formats, without vector instructions."""

import os
import subprocess
import sys
from pathlib import Path

import flash_reference as reference
import numpy as np
import pytest
from flash_blocks import windows

from tests.kernels.conftest import open_session
from tools.make_tiny_gguf import write_model, write_tiny
from tools.random_model import random_model

MIXED = {  # as published files have it: another format for each role
    "per_layer_token_embd.weight": "IQ4_NL", "*ple_conv1d.weight": "F16", "*ple_value.weight": "BF16", "*_exps.weight": "Q8_0",
    "*hc_*_down.weight": "BF16", "*hc_*_up.weight": "F16", "*attn_qkv.weight": "IQ4_NL", "*indexer.*_proj.weight": "BF16",
    "token_embd.weight": "Q8_0", "output.weight": "F16"}
BUDGET = 16


def text(vocab: int, n: int, seed: int) -> np.ndarray:
    """Random ids with resets (5) inside, two in a row among them."""
    tokens = np.random.default_rng(seed).integers(0, vocab, n).astype(np.int32)
    tokens[[3, 4, n // 2]] = 5
    return tokens


def read(session, tokens: np.ndarray, cuts: list[tuple[int, int]]) -> np.ndarray:
    """All logits, window by window."""
    return np.concatenate([session.step(tokens[start:stop], logits="all").copy() for start, stop in cuts])


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64) - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize("seed, changes", [(3, {}), (4, {"ssm_dim": 64, "ssm_value_heads": 2, "index_heads": 1})])
def test_logits_of_a_binding_budget(tmp_path, seed, changes):
    model = random_model("qwen4exp", seed=seed, index_budget=BUDGET, **changes)
    tokens = text(model.sizes.vocab, 90, seed)
    with open_session(write_model(tmp_path / "model.gguf", model)[0]) as session:
        ours = log_softmax(read(session, tokens, windows(90, seed, 8)))
    exact = log_softmax(reference.trunk(model.tensors, model.metadata, tokens))
    divergence = (np.exp(exact) * (exact - ours)).sum(-1)
    assert divergence.max() <= 1e-9
    dense = dict(model.metadata) | {"qwen4exp.attention.indexer.top_k": 90}
    unlike = log_softmax(reference.trunk(model.tensors, dense, tokens))
    assert (np.exp(exact) * (exact - unlike)).sum(-1)[4 * BUDGET:].max() > 1e-4  # so the choice of blocks is seen


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Path:
    """A model in mixed formats whose budget binds."""
    path = tmp_path_factory.mktemp("mixed") / "model.gguf"
    return write_tiny(path, "qwen4exp", seed=2, preset="blocks", store=MIXED, index_budget=BUDGET)[0]


def test_mixed_formats_give_the_same_bits_for_every_cut(mixed):
    tokens = text(167, 60, 1)
    with open_session(mixed) as session:
        whole = read(session, tokens, windows(60, 0, 8))
        for seed in range(1, 5):
            session.reset()
            assert np.array_equal(read(session, tokens, windows(60, seed, 8)), whole)
        assert np.isfinite(whole).all() and np.unique(whole.argmax(-1)).size > 10
    for workers, prefill in ((1, 32), (3, 59)):
        with open_session(mixed, pool_workers=workers, prefill=prefill) as session:
            for start, stop in windows(59, workers, prefill):
                session.step(tokens[start:stop], logits="none")
            assert np.array_equal(session.step(tokens[59:])[0], whole[-1])


def test_a_checkpoint_brings_every_state_back(mixed):
    tokens = text(167, 60, 2)
    with open_session(mixed) as session:
        whole = read(session, tokens, windows(60, 0, 8))
        for cut in (2, 9, 30, 55):  # before and behind the history of the convolutions, and where the budget binds
            session.reset()
            session.step(tokens[:cut], logits="none")
            kept = session.save()
            session.step(tokens[::-1].copy(), logits="none")
            session.restore(kept)
            assert np.array_equal(read(session, tokens[cut:], windows(60 - cut, cut, 8)), whole[cut:])


def test_fused_gate_and_up_give_the_same_bits(tmp_path):
    model = random_model("qwen4exp", seed=5, layers=4)
    tokens = text(model.sizes.vocab, 20, 5)
    results = []
    for fused in (False, True):
        if fused:
            for layer in range(4):
                gate, up = (model.tensors.pop(f"blk.{layer}.ffn_{part}_exps.weight") for part in ("gate", "up"))
                model.tensors[f"blk.{layer}.ffn_gate_up_exps.weight"] = np.concatenate([gate, up], 1)
        with open_session(write_model(tmp_path / f"{fused}.gguf", model)[0]) as session:
            results.append(read(session, tokens, windows(20, 1, 8)))
    assert np.array_equal(*results)


_SCRIPT = """
import sys
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[1])
from tests.kernels.conftest import open_session
with open_session(Path(sys.argv[2])) as session:
    rows = [session.step(t, logits="all").copy() for t in np.split(np.arange(60, dtype=np.int32), range(8, 60, 8))]
    np.save(sys.argv[3], np.concatenate(rows))
    print(session.info()["isa"])
"""


def test_the_plain_instruction_set_gives_the_same_bits(tmp_path):
    path = write_tiny(tmp_path / "model.gguf", "qwen4exp", layers=4, index_budget=BUDGET)[0]
    command = [sys.executable, "-c", _SCRIPT, str(Path(__file__).parent), str(path), str(tmp_path / "plain.npy")]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env={**os.environ, "TERRACE_ISA": "plain"},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["plain"]
    with open_session(path) as session:
        ours = read(session, np.arange(60, dtype=np.int32), windows(60, 1, 8))
    assert np.array_equal(np.load(tmp_path / "plain.npy").view(np.int32), ours.view(np.int32))

"""Numbers that are none: a token still takes each expert once, the logits say so, and nothing is written out of bounds."""

import numpy as np
import pytest

from engine.backend.cpu import isa

isa.prepare_numba()  # before numba is imported
from engine.backend.cpu import routing  # noqa: E402
from engine.backend.cpu.pool import Pool  # noqa: E402
from engine.backend.cpu.program import Program, allocate, float_bits  # noqa: E402
from tools.make_tiny_gguf import write_model  # noqa: E402
from tools.random_model import random_model  # noqa: E402

EXPERTS, USED = 12, 5
NAN, INF = np.nan, np.inf


def choose(logits: np.ndarray, scoring: str, groups: int) -> np.ndarray:
    """Expert ids i32 [T, USED] of logits f32 [T, EXPERTS]."""
    pool = Pool(1)
    try:
        program, rows = Program(pool, len(logits)), allocate(logits.shape, np.float32)
        rows[:] = logits
        ids, weights = program.memory((len(logits), USED), np.int32), program.memory((len(logits), USED))
        scratch, piece = program.worker_scratch("scores", routing.scratch_bytes(EXPERTS))
        program.add(routing.choose_function(scoring), {
            routing.LOGITS: rows.ctypes.data, routing.EXPERTS: EXPERTS, routing.USED: USED, routing.IDS: ids.ctypes.data,
            routing.WEIGHTS: weights.ctypes.data, routing.NORMALISE: 1, routing.WEIGHT_SCALE: float_bits(1.0),
            routing.SCRATCH: scratch, routing.SCRATCH_BYTES: piece, routing.SELECTION_BIAS: 0, routing.GROUPS: groups,
            routing.GROUPS_USED: groups // 2})
        program.seal()
        program.run(rows=len(logits), position=0, out_first=0, out_rows=0)
        return ids.copy()
    finally:
        pool.close()


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid", "selected_softmax"])
def test_a_token_takes_each_expert_once(scoring, groups):
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((400, EXPERTS)).astype(np.float32)
    kinds = np.array([NAN, INF, -INF, 3e38, -3e38, 0], np.float32)
    odd = rng.random(logits.shape) < rng.random((400, 1))
    logits[odd] = rng.choice(kinds, int(odd.sum()))
    logits[:5] = kinds[:5, None]
    ids = choose(logits, scoring, groups)
    assert ids.min() >= 0
    assert ids.max() < EXPERTS
    assert all(len(set(row)) == USED for row in ids.tolist())


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("arch", ["llama-moe", "qwen3moe", "qwen4exp"])
def test_a_poisoned_token_ends_in_logits_that_are_not_finite(arch, value, tmp_path, sessions):
    model = random_model(arch, preset="blocks")
    model.tensors["token_embd.weight"][3] = value
    path = write_model(tmp_path / "model.gguf", model, store={"*_exps.weight": "Q8_0"})[0]
    session = sessions(path, prefill=200, max_context=400)
    assert not np.isfinite(session.step(np.full(200, 3, np.int32))).all()
    session.reset()
    assert np.isfinite(session.step(np.full(200, 4, np.int32))).all()

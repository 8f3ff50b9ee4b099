"""Real weights: the fetched pack beside its float twin, and its first layers in F32 as a mixture and as the dense model.

The whole bar, over many formats and with the peer in the same run, is tools/fidelity.py; what it wrote down about the pack is
enough to hold the engine to the same bar here.
"""

from pathlib import Path

import numpy as np
import pytest

from engine.errors import BadModel
from packs.manifest import fetched_pack, resolve_model
from tools.distance import COARSE, coarse, distance, log_softmax
from tools.fidelity import GOLDEN, MOST_KL_RATIO, MOST_LESS_AGREEMENT, MOST_TWIN_KL, own_logits
from tools.float_twins import write_float_twins
from tools.one_expert import write_dense

pytestmark = pytest.mark.model
LAYERS = 6


@pytest.fixture(scope="module")
def golden():
    return dict(np.load(GOLDEN))


@pytest.fixture(scope="module")
def pack(golden) -> Path:
    """The fetched pack's file, if it is the one that the golden was made from."""
    try:
        path = resolve_model(fetched_pack()).model
    except BadModel as error:
        pytest.skip(str(error))
    if path.stat().st_size != int(golden["model_bytes"]):
        pytest.skip(f"{path.name} is not the model that {GOLDEN.name} was made from")
    return path


def test_the_pack_is_as_near_to_its_float_twin_as_the_peer(pack, golden):
    ours = own_logits(pack, [golden["tokens"].tolist()])
    log_p = np.concatenate([golden["log_p"], golden["rest"][:, None]], axis=1).astype(np.float64)  # [tokens, COARSE + 1]
    assert log_p.shape[1] == COARSE + 1
    kl = (np.exp(log_p) * (log_p - coarse(log_softmax(ours), golden["ids"]))).sum(axis=1).mean()
    assert kl <= MOST_KL_RATIO * float(golden["peer_kl"]), f"{kl / golden['peer_kl']:.3f} times the peer's"
    assert kl > 1e-4, "int8 activations cost something; that near to the twin means that something else was compared"
    agreement = (ours.argmax(axis=1) == golden["ids"][:, 0]).mean()
    assert agreement >= float(golden["peer_agreement"]) - MOST_LESS_AGREEMENT


def test_a_mixture_of_equal_experts_says_what_the_dense_model_says(pack, golden, tmp_path):
    source = tmp_path / "source.gguf"
    write_dense(pack, source)
    dense, mixture = write_float_twins(source, tmp_path, layers=LAYERS)
    tokens = [golden["tokens"][:128].tolist()]
    one, other = own_logits(dense, tokens), own_logits(mixture, tokens)
    found = distance(one, other)
    assert found.worst_kl <= MOST_TWIN_KL
    assert found.agreement == 1
    assert np.abs(one).max() > 1

"""The embedded pack through the whole engine: ten greedy conversations are the committed ones, token for token."""

import json
from pathlib import Path

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.session import load_session
from packs.manifest import resolve_model

ROOT = Path(__file__).parents[2]
PACK, GOLDEN = ROOT / "packs" / "tiny", ROOT / "tests" / "goldens" / "tiny_transcripts.json"
TRANSCRIPTS = json.loads(GOLDEN.read_text())


@pytest.fixture(scope="module")
def session():
    loaded = load_session(resolve_model(PACK), EngineConfig(model=PACK, max_context=1024))
    yield loaded
    loaded.close()


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda entry: entry["asked"])
def test_greedy_replies_are_the_committed_ones(session, transcript):
    session.reset()
    row, reply = session.step(np.array(transcript["prompt"], np.int32))[0], []
    while len(reply) < len(transcript["reply"]):
        reply.append(int(row.argmax()))
        row = session.step(reply[-1:])[0]
    assert reply == transcript["reply"]
    assert reply[-1] in session.stop_ids

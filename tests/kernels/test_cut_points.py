"""Every kind of state through random scripts of reading, saving, restoring and cutting: what comes next is what a sequence
that was read in one go would give, to the bit."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernels.conftest import open_session
from tools.make_tiny_gguf import write_tiny
from tools.random_model import ARCHITECTURES, RECIPES

CONTEXT, PREFILL = 160, 48
NEXT = 7  # the token whose logits are compared

read = st.tuples(st.just("read"), st.lists(st.integers(0, 150), min_size=1, max_size=PREFILL))
save, restore = st.tuples(st.just("save"), st.none()), st.tuples(st.just("restore"), st.none())
cut = st.tuples(st.just("cut"), st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0])))
there_and_back = st.tuples(save, read, restore)  # rare by chance
scripts = st.lists(st.one_of(st.tuples(read), there_and_back, st.tuples(cut), st.tuples(restore)), min_size=2, max_size=8)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def pair(request, tmp_path_factory):
    """Two sessions on one model: one for scripts, one that reads everything at once."""
    layers = min(RECIPES[request.param].tiny.layers, 8)
    path = write_tiny(tmp_path_factory.mktemp("models") / "m.gguf", request.param, layers=layers)[0]
    with (open_session(path, max_context=CONTEXT, prefill=PREFILL, pool_workers=2) as one,
          open_session(path, max_context=CONTEXT, prefill=CONTEXT, pool_workers=1) as other):
        yield one, other


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=scripts.map(lambda parts: [step for part in parts for step in part]))
def test_any_script_of_cuts_leaves_the_state_of_its_tokens(pair, script):
    session, fresh = pair
    session.reset()
    tokens, kept, kept_tokens = [], None, []
    for what, value in script:
        match what:
            case "read" if len(tokens) + len(value) < CONTEXT:
                session.step(value, logits="none" if len(value) % 2 else "last")
                tokens += value
            case "save":
                kept, kept_tokens = session.save(), list(tokens)
            case "restore" if kept is not None and tokens[:len(kept_tokens)] == kept_tokens:
                session.restore(kept)
                tokens = list(kept_tokens)
            case "cut":
                n = round(value * len(tokens))
                if session._state.can_cut or n in (0, len(tokens)):
                    session.cut(n)
                    tokens = tokens[:n]
        assert session.position == len(tokens)
    ours = session.step([NEXT])[0].copy()
    fresh.reset()
    expected = fresh.step([*tokens, NEXT])[0]
    assert np.array_equal(ours.view(np.int32), expected.view(np.int32))

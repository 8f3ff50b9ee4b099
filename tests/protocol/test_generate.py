"""One request as a step machine, in process: what is stepped, what comes out, what is refused."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backend.base import Draw
from engine.errors import BadRequest, BadToken, ContextExceeded, NonFiniteLogits
from engine.generate import generate
from engine.protocol import Done, Event, Gen, Progress, Sampling, TokenLine
from engine.sampling.sampler import pick
from tests.protocol.mock_session import NAN, MockSession, greedy_reply

SAMPLED = Sampling(temperature=1.0, top_k=0, seed=5)


def _run(
    session: MockSession, gen: Gen, *, is_cancelled: Callable[[], bool] = lambda: False
) -> tuple[list[int], Done, list[Event]]:
    events = [event for events in generate(session, gen, is_cancelled=is_cancelled) for event in events]
    done = events[-1]
    assert isinstance(done, Done)
    tokens = [event.token for event in events if isinstance(event, TokenLine)]
    assert done.generated == len(tokens)
    return tokens, done, events


@settings(max_examples=40)
@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 12))
def test_the_prompt_is_read_on_a_grid_and_each_token_but_the_last_once(n: int, chunk: int, max_new: int) -> None:
    session = MockSession(chunk_size=chunk, stop_ids=())
    prompt = tuple(range(100, 100 + n))
    tokens, done, events = _run(session, Gen(max_new=max_new, tokens=prompt))
    assert tokens == greedy_reply(list(prompt), max_new, stop_ids=())
    whole, rest = divmod(n, chunk)
    assert session.log == ["reset", *[chunk] * whole, *[rest] * bool(rest), *[1] * max(max_new - 1, 0)]
    assert [event.done for event in events if isinstance(event, Progress)] == [*range(chunk, n, chunk), n]
    assert (done.prompt, done.prompt_read, done.finish) == (n, n, "length")


@settings(max_examples=20)
@given(st.integers(1, 29))
def test_a_sampled_reply_can_be_continued_from_anywhere(n_kept: int) -> None:
    session = MockSession()
    tokens, _, _ = _run(session, Gen(max_new=30, tokens=(5, 6, 7), sampling=SAMPLED, ignore_eos=True))
    prompt = (5, 6, 7, *tokens[:n_kept])
    rest, _, _ = _run(session, Gen(max_new=30 - n_kept, tokens=prompt, sampling=SAMPLED, ignore_eos=True))
    assert rest == tokens[n_kept:]


def test_penalties_see_the_prompt_and_the_reply() -> None:
    session = MockSession(stop_ids=())
    sampling = Sampling(penalty_present=100.0, penalty_last_n=1000)
    prompt = tuple(greedy_reply([5, 6, 7], 20, stop_ids=()))
    tokens, _, _ = _run(session, Gen(max_new=60, tokens=prompt, sampling=sampling))
    assert len({*prompt, *tokens}) == len(set(prompt)) + 60  # nothing twice


@pytest.mark.parametrize("n_polls", range(12))
def test_a_cancel_is_seen_between_steps(n_polls: int) -> None:
    session = MockSession(chunk_size=2, stop_ids=())
    polls = iter([False] * n_polls)
    prompt = (10, 11, 12, 13, 14)  # three chunks
    tokens, done, _ = _run(session, Gen(max_new=9, tokens=prompt), is_cancelled=lambda: next(polls, True))
    assert done.finish == "cancel"
    assert done.prompt_read == min(2 * n_polls, 5)
    assert len(session.log) == 1 + n_polls - (n_polls > 3)  # the poll behind the prompt comes before no step
    assert tokens == greedy_reply(list(prompt), max(n_polls - 3, 0), stop_ids=())


def test_the_context_ends_a_reply() -> None:
    session = MockSession(max_context=10, stop_ids=())
    tokens, done, _ = _run(session, Gen(max_new=100, tokens=(1, 2, 3, 4, 5, 6)))
    assert (len(tokens), done.finish, session.position) == (4, "length", 9)


def test_a_stop_id_ends_a_reply_at_the_last_token_too() -> None:
    first = greedy_reply([5, 6, 7], 1)[0]
    session = MockSession(stop_ids=(first,))
    assert _run(session, Gen(max_new=1, tokens=(5, 6, 7)))[1].finish == "stop"
    assert _run(session, Gen(max_new=9, tokens=(5, 6, 7)))[0] == [first]
    assert len(_run(session, Gen(max_new=9, tokens=(5, 6, 7), ignore_eos=True))[0]) == 9


@pytest.mark.parametrize(
    ("gen", "error"),
    [
        (Gen(max_new=1, tokens=(5, 512)), BadToken),
        (Gen(max_new=1, tokens=(2**31 - 1,)), BadToken),
        (Gen(max_new=0, tokens=(5,) * 4096), ContextExceeded),
        (Gen(max_new=1, tokens=(5,), score=(1, 2)), BadRequest),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_touched(gen: Gen, error: type[Exception]) -> None:
    session = MockSession()
    with pytest.raises(error):
        next(generate(session, gen, is_cancelled=lambda: False))
    assert session.log == []


def test_logits_that_are_not_finite_end_the_request() -> None:
    session = MockSession()
    with pytest.raises(NonFiniteLogits, match="position 3"):
        _run(session, Gen(max_new=4, tokens=(5, NAN, 6)))
    _run(session, Gen(max_new=0, tokens=(5, NAN, 6)))  # nobody looks at them


class _RunningAhead(MockSession):
    """Picks tokens itself, and is a window ahead of its reader."""

    runs_ahead = True

    def run_ahead(self, token: int, *, limit: int, stop_ids: Sequence[int], draw: Draw | None = None) -> Iterator[int]:
        self.log.append("ahead")
        sampling = Sampling() if draw is None else Sampling(
            temperature=draw.temperature, top_k=draw.top_k, top_p=draw.top_p, min_p=draw.min_p)
        for _ in range(limit):
            logits = self.step(np.array([token], dtype=np.int32))
            assert logits is not None
            token = pick(logits[0], sampling, seed=0 if draw is None else draw.seed, position=self.position)
            yield token
            if token in stop_ids:
                return


@pytest.mark.parametrize(
    ("settings", "ahead"),
    [({}, True), ({"temperature": 0.8}, True), ({"temperature": 2.0, "top_k": 64, "top_p": 0.9, "min_p": 0.1}, True),
     ({"temperature": 0.8, "top_k": 0}, False), ({"temperature": 0.8, "penalty_repeat": 1.2}, False),
     ({"penalty_freq": 0.5}, False), ({"penalty_freq": 0.5, "penalty_last_n": 0}, True)],
)
def test_a_model_that_runs_ahead_gives_the_same_text(settings: dict, ahead: bool) -> None:
    gen = Gen(max_new=40, tokens=(5, 9, 30), sampling=Sampling(seed=77, **settings))
    session = _RunningAhead()
    assert _run(session, gen)[0] == _run(MockSession(), gen)[0]
    assert ("ahead" in session.log) == ahead


def test_log_probabilities_need_the_logits_here() -> None:
    session = _RunningAhead()
    _run(session, Gen(max_new=4, tokens=(5, 9), logprobs=2))
    assert "ahead" not in session.log

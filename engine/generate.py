"""One request on one sequence, as a generator of events: no input or output, no protocol text.

Reads the prompt in chunks on an absolute grid, then decodes in windows of one token. What arrives meanwhile (a cancel)
is asked for between chunks and between windows; what goes wrong is raised as an EngineError. Runs on the main thread.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.backend.base import Draw
from engine.errors import BadRequest, BadToken, ContextExceeded, NonFiniteLogits
from engine.messages import Done, Event, Finish, Gen, Progress, TokenLine
from engine.sampling.logprobs import log_probabilities
from engine.sampling.sampler import has_penalties, pick


class SequenceModel(Protocol):
    """What a request needs of a session: one sequence on one loaded model."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_context(self) -> int: ...
    @property
    def chunk_size(self) -> int: ...
    @property
    def stop_ids(self) -> tuple[int, ...]: ...
    @property
    def position(self) -> int: ...
    @property
    def runs_ahead(self) -> bool: ...
    def run_ahead(
        self, token: int, *, limit: int, stop_ids: Sequence[int], draw: Draw | None = None
    ) -> Iterator[int]: ...
    def reset(self) -> None: ...
    def step(
        self, tokens: NDArray[np.int32], *, logits: Literal["none", "last", "all"] = "last"
    ) -> NDArray[np.float32] | None: ...
    def usage(self) -> dict[str, int]: ...


def generate(session: SequenceModel, gen: Gen, *, is_cancelled: Callable[[], bool]) -> Iterator[list[Event]]:
    """The events of a request, a list for each chunk and each window; the last one is Done.

    Raises before anything is computed where the request cannot be carried out.
    """
    prompt = check_request(session, gen)
    started_s = time.perf_counter()
    usage_before = session.usage()
    session.reset()
    logits: NDArray[np.float32] | None = None
    while session.position < prompt.size and not is_cancelled():
        end = min((session.position // session.chunk_size + 1) * session.chunk_size, prompt.size)
        wants_logits = end == prompt.size and gen.max_new > 0
        logits = session.step(prompt[session.position : end], logits="last" if wants_logits else "none")
        elapsed_s = time.perf_counter() - started_s
        yield [Progress(end, int(prompt.size), round(elapsed_s * 1e3), end / max(elapsed_s, 1e-9))]
    prompt_read = session.position
    prompt_end_s = time.perf_counter()
    usage_at_decode = session.usage()

    # the clock's nanoseconds fit the 64 bits of a seed until the year 2554
    seed = time.time_ns() if gen.sampling.seed is None else gen.sampling.seed
    generated = 0
    finish: Finish = "length"
    if prompt_read < prompt.size or (logits is not None and is_cancelled()):
        finish = "cancel"
    elif logits is not None:
        reply = _decode(session, gen, prompt=prompt, logits=logits, seed=seed, is_cancelled=is_cancelled)
        for reason, line in reply:
            finish = reason
            generated += 1
            yield [line]
    usage = session.usage()
    yield [
        Done(
            generated=generated,
            prompt=int(prompt.size),
            prompt_ms=(prompt_end_s - started_s) * 1e3,
            decode_ms=(time.perf_counter() - prompt_end_s) * 1e3,
            finish=finish,
            hits=usage["hits"] - usage_at_decode["hits"],
            lookups=usage["lookups"] - usage_at_decode["lookups"],
            ram_blobs=usage["ram_blobs"] - usage_before["ram_blobs"],
            file_blobs=usage["file_blobs"] - usage_before["file_blobs"],
            file_mb=usage["file_mb"] - usage_before["file_mb"],
            prompt_read=prompt_read,
            id=gen.id,
            extra={"seed": str(seed)} if gen.sampling.temperature > 0 else {},
        )
    ]


def check_request(session: SequenceModel, gen: Gen) -> NDArray[np.int32]:
    """The prompt as an array [n]; raises for what cannot be carried out."""
    if gen.score is not None:
        raise BadRequest("score is not available in this engine")
    prompt = np.array(gen.tokens, dtype=np.int32)
    if int(prompt.max()) >= session.vocab_size:
        place = int(np.argmax(prompt >= session.vocab_size))
        raise BadToken(
            f"token {prompt[place]} at place {place} of the prompt is outside the vocabulary of {session.vocab_size}"
        )
    if prompt.size >= session.max_context:
        raise ContextExceeded(
            f"the prompt has {prompt.size} tokens, the context {session.max_context}: at most "
            f"{session.max_context - 1} can be read"
        )
    return prompt


def _decode(
    session: SequenceModel,
    gen: Gen,
    *,
    prompt: NDArray[np.int32],
    logits: NDArray[np.float32],
    seed: int,
    is_cancelled: Callable[[], bool],
) -> Iterator[tuple[Finish, TokenLine]]:
    """The tokens after the prompt, each with how the request ends if it is the last one.

    `logits` [1, vocab] are those after the prompt's last token. The last token is not read into the sequence.
    """
    limit = min(gen.max_new, session.max_context - prompt.size)
    stop_ids = frozenset() if gen.ignore_eos else frozenset(session.stop_ids)
    text = np.empty(prompt.size + limit, dtype=np.int32)  # prompt and reply
    text[: prompt.size] = prompt
    pick_lines = _picks_of_the_model if _is_picked_by_the_model(session, gen) else _picks_of_the_sampler
    lines = pick_lines(session, gen, text=text, start=prompt.size, logits=logits, seed=seed, stop_ids=stop_ids)
    for position, line in enumerate(lines, prompt.size):
        text[position] = line.token
        if line.token in stop_ids:
            yield "stop", line
            return
        if position + 1 == text.size:
            yield "length", line
            return
        yield "cancel", line  # which it is if this is where the loop ends
        if is_cancelled():
            return


def _is_picked_by_the_model(session: SequenceModel, gen: Gen) -> bool:
    """Whether the model can pick the tokens itself: it does so without waiting for the one before to be read here."""
    if not session.runs_ahead or gen.logprobs is not None or has_penalties(gen.sampling):
        return False
    return gen.sampling.temperature == 0 or gen.sampling.top_k > 0


def _picks_of_the_model(
    session: SequenceModel, gen: Gen, *, text: NDArray[np.int32], start: int, logits: NDArray[np.float32], seed: int,
    stop_ids: frozenset[int],
) -> Iterator[TokenLine]:
    """The first token from the prompt's logits, the others as the model picks them."""
    first = _sampled(gen, logits[-1], text=text, position=start, seed=seed)
    yield first
    how = gen.sampling
    draw = None
    if how.temperature > 0:
        draw = Draw(top_k=how.top_k, top_p=how.top_p, min_p=how.min_p, temperature=how.temperature, seed=seed)
    for token in session.run_ahead(first.token, limit=text.size - start - 1, stop_ids=sorted(stop_ids), draw=draw):
        yield TokenLine(token)


def _picks_of_the_sampler(
    session: SequenceModel, gen: Gen, *, text: NDArray[np.int32], start: int, logits: NDArray[np.float32], seed: int,
    stop_ids: frozenset[int],
) -> Iterator[TokenLine]:
    """Each token from its logits. It is read into the sequence when the next one is asked for."""
    for position in range(start, text.size):
        yield _sampled(gen, logits[-1], text=text, position=position, seed=seed)
        following = session.step(text[position : position + 1], logits="last")
        if following is None:
            raise TypeError("a step with logits gave none")
        logits = following


def _sampled(
    gen: Gen, row: NDArray[np.float32], *, text: NDArray[np.int32], position: int, seed: int
) -> TokenLine:
    """The token for a position from its logits f32 [vocab]."""
    if not np.isfinite(row).all():
        raise NonFiniteLogits(f"the logits for position {position} are not finite")
    token = pick(row, gen.sampling, seed=seed, position=position, history=text[:position])
    if gen.logprobs is None:
        return TokenLine(token)
    return TokenLine(token, *log_probabilities(row, token, n_top=gen.logprobs))

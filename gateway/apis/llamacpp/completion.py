"""From the engine's tokens to a completion: text as it is, no channels, with the tokens that each piece came from.

`CompletionAssembler` is pure; `stream_completion` drives it with a run of the engine. A token comes out with its text,
once no stop string can swallow it, so the tokens of a completion are exactly those of its text.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import TypeAlias

import msgspec

from engine.protocol import Done, Gen, Progress, Resume, TokenLine
from gateway.apis.llamacpp.indent import IndentGuard
from gateway.engine_client import EngineClient
from gateway.events import PromptProgress, Timings
from gateway.text.detokenizer import Detokenizer
from gateway.text.stops import StopFilter
from gateway.text.vocabulary import Vocabulary


class Piece(msgspec.Struct, frozen=True):
    """Text that is certain, and the tokens that it began with."""

    text: str
    lines: tuple[TokenLine, ...]
    tokens_seen: int  # generated so far
    timings: Timings


class Progressed(msgspec.Struct, frozen=True):
    """The engine has read part of the prompt."""

    progress: PromptProgress
    cached: int
    ms: int


class Completed(msgspec.Struct, frozen=True):
    """The end of a completion that went well."""

    stop_type: str
    stopping_word: str
    truncated: bool
    tokens_seen: int
    prompt_tokens: int
    seed: int | None
    timings: Timings


CompletionEvent: TypeAlias = Progressed | Piece | Completed


class CompletionAssembler:
    """One completion. Feed token lines; read `is_complete` to know that nothing more is wanted."""

    def __init__(
        self, vocabulary: Vocabulary, *, stops: tuple[str, ...], stop_ids: frozenset[int], indent: int = 0
    ) -> None:
        self._detokenizer = Detokenizer(vocabulary)
        self._stops = StopFilter(stops)
        self._indent = IndentGuard(indent)
        self._cut_short = False
        self._stop_ids = stop_ids
        self._held: deque[tuple[int, TokenLine]] = deque()  # tokens, each with the place in the text where it begins
        self._decoded = 0  # characters
        self._released = 0
        self.tokens = 0  # seen so far, end-of-turn token included

    @property
    def stop_hit(self) -> str | None:
        """The stop string that was found."""
        return self._stops.hit

    @property
    def is_limited(self) -> bool:
        """Whether a limit ended it: a line that is indented too little, or `cut_short`."""
        return self._indent.hit or self._cut_short

    @property
    def is_complete(self) -> bool:
        """Whether it has ended, whatever the engine still says."""
        return self.stop_hit is not None or self.is_limited

    def cut_short(self) -> None:
        """End it here."""
        self._cut_short = True

    def feed(self, line: TokenLine) -> tuple[str, tuple[TokenLine, ...]]:
        """The text that is certain with this token, and the tokens that go with it."""
        if self.is_complete:
            return "", ()
        self.tokens += 1
        self._held.append((self._decoded, line))
        text = "" if line.token in self._stop_ids else self._detokenizer.feed(line.token)
        return self._release(text, ended=False)

    def finish(self) -> tuple[str, tuple[TokenLine, ...]]:
        """The completion has ended: everything that was held back, unless it is behind its end."""
        return self._release(self._detokenizer.finish(), ended=True)

    def _release(self, text: str, *, ended: bool) -> tuple[str, tuple[TokenLine, ...]]:
        self._decoded += len(text)
        certain = self._stops.feed(text)
        if ended:
            certain += self._stops.finish()
        certain = self._indent.feed(certain)
        self._released += len(certain)
        nothing_held = self._released == self._decoded and not self._detokenizer.in_character
        lines = []
        while self._held and (self._held[0][0] < self._released or nothing_held):
            lines.append(self._held.popleft()[1])
        return certain, tuple(lines)


async def stream_completion(
    client: EngineClient, gen: Gen, assembler: CompletionAssembler, *, time_limit_ms: float
) -> AsyncGenerator[CompletionEvent, None]:
    """Run a request. Ends with Completed; raises ApiError. Closing the iterator early stops the engine's work.

    `time_limit_ms`: after so long the first line end ends it.
    """
    async with client.run(gen) as run:
        clock = _Clock(len(gen.tokens))
        async for event in run:
            match event:
                case Resume():
                    clock.cached = event.reused
                case Progress():
                    yield Progressed(PromptProgress(event.done, event.total), clock.cached, event.ms)
                case TokenLine():
                    text, lines = assembler.feed(event)
                    timings = clock.timings(assembler.tokens)
                    if text or lines:
                        yield Piece(text, lines, assembler.tokens, timings)
                    if "\n" in text and timings.predicted_ms > time_limit_ms:
                        assembler.cut_short()
                    if assembler.is_complete:
                        await run.stop(keep=assembler.tokens)
                case Done():
                    text, lines = assembler.finish()
                    if text or lines:
                        yield Piece(text, lines, assembler.tokens, clock.timings(assembler.tokens))
                    yield _completed(event, gen, assembler)


class _Clock:
    """Times of a completion that is under way; the engine says its own at the end."""

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._began_s = time.monotonic()
        self._first_token_s: float | None = None
        self.cached = 0

    def timings(self, tokens: int) -> Timings:
        """Until now, with so many tokens generated."""
        now_s = time.monotonic()
        if self._first_token_s is None:
            self._first_token_s = now_s
        return Timings(
            cache_n=self.cached,
            prompt_n=self._prompt_tokens - self.cached,
            prompt_ms=(self._first_token_s - self._began_s) * 1000,
            predicted_n=tokens,
            predicted_ms=(now_s - self._first_token_s) * 1000,
            draft_n=0,
            draft_n_accepted=0,
        )


def _completed(done: Done, gen: Gen, assembler: CompletionAssembler) -> Completed:
    word = assembler.stop_hit
    seed = done.extra.get("seed", "")
    cut = word is None and assembler.is_limited
    limited = done.finish == "length"
    return Completed(
        stop_type="word" if word is not None else "limit" if limited or cut else "eos",
        stopping_word=word or "",
        truncated=limited and not assembler.is_complete and done.generated < gen.max_new,
        tokens_seen=assembler.tokens,
        prompt_tokens=done.prompt,
        seed=int(seed) if seed.isdecimal() else None,
        timings=msgspec.structs.replace(Timings.of(done), predicted_n=assembler.tokens),
    )

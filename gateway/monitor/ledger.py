"""What became of every request, in numbers: those under way, a ring of the last ones, and totals. Never any text.

The engine's client writes here, on the event loop; snapshots and metrics read. A figure that is not known is None.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Literal, TypeAlias

import msgspec

from engine.protocol import Done, Event, Progress, Resume, TokenLine

RECENT_REQUESTS = 100
_RATE_WINDOW_S = 2.0
_SHORTEST_SPAN_S = 0.25  # a mean over less starts with absurd figures

Phase: TypeAlias = Literal["queued", "prompt", "decode", "ended"]
Ending: TypeAlias = Literal["stop", "length", "cancel", "error"]

# Set by the HTTP layer, so that no API has to hand it through.
ROUTE: ContextVar[str] = ContextVar("route", default="")


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it is shown."""

    number: int
    route: str
    began_unix_s: float
    phase: Phase
    ending: Ending | None = None
    error: str | None = None  # its code
    prompt_tokens: int
    prompt_done: int | None = None  # positions in the engine's state
    generated: int = 0
    reused: int | None = None
    queue_s: float | None = None
    first_token_s: float | None = None  # from arrival
    total_s: float
    tokens_per_s: float | None = None  # the last two seconds while it runs, then the whole reply's
    prompt_tokens_per_s: float | None = None
    prompt_ms: float | None = None
    decode_ms: float | None = None
    accepted: int | None = None
    offered: int | None = None
    hits: int | None = None
    lookups: int | None = None
    ram_blobs: int | None = None
    file_blobs: int | None = None
    file_mb: int | None = None


class Totals(msgspec.Struct, kw_only=True):
    """Sums since the server began; they only grow."""

    requests: int = 0  # that have ended
    stop: int = 0
    length: int = 0
    cancel: int = 0
    error: int = 0
    refused: int = 0  # because the queue was full
    prompt_tokens: int = 0  # read by the engine
    generated: int = 0
    reused: int = 0
    prompt_queries: int = 0  # prompt tokens that were looked up in the cache
    accepted: int = 0
    offered: int = 0
    hits: int = 0
    lookups: int = 0
    ram_blobs: int = 0
    file_blobs: int = 0
    file_mb: int = 0
    prompt_ms: float = 0.0
    decode_ms: float = 0.0


class LiveRequest:
    """One request from its arrival to its end."""

    def __init__(self, number: int, *, route: str, prompt_tokens: int) -> None:
        self.has_vram = True  # whether hits and lookups mean anything
        self.number = number
        self._route = route
        self._prompt_tokens = prompt_tokens
        self._began_unix_s = round(time.time(), 3)
        self._arrived_s = time.monotonic()
        self._started_s: float | None = None
        self._first_token_s: float | None = None
        self._ended_s: float | None = None
        self._prompt_done: int | None = None
        self._prompt_rate: float | None = None
        self._reused: int | None = None
        self._token_times_s: deque[float] = deque(maxlen=256)
        self.phase: Phase = "queued"
        self.generated = 0
        self.done: Done | None = None
        self.error: str | None = None  # the code of what ended it
        self.given_up = False  # nobody reads it any more

    @property
    def ending(self) -> Ending:
        """How it ended, if it has. A run that is stopped and still read was stopped for a stop string."""
        if self.error is not None:
            return "error"
        if self.done is None or self.given_up:
            return "cancel"
        return "length" if self.done.finish == "length" else "stop"

    @property
    def prompt_read(self) -> int:
        """Prompt tokens that the engine has read so far, those from its cache left out."""
        return max((self._prompt_done or 0) - (self._reused or 0), 0)

    def start(self, *, has_vram: bool) -> None:
        """It is its turn. Without VRAM nothing can be looked up there."""
        self.has_vram = has_vram
        self._started_s = time.monotonic()
        self.phase = "prompt"

    def note(self, event: Event) -> None:
        """What the engine says about it."""
        match event:
            case TokenLine():
                now_s = time.monotonic()
                if self._first_token_s is None:
                    self._first_token_s = now_s
                    self._prompt_done = self._prompt_tokens
                    self.phase = "decode"
                self.generated += 1
                self._token_times_s.append(now_s)
            case Progress():
                self._prompt_done = event.done
                self._prompt_rate = event.tokens_per_s
            case Resume():
                self._reused = self._prompt_done = event.reused
            case Done():
                self.done = event

    def end(self) -> None:
        """Nothing more will come."""
        self._ended_s = time.monotonic()
        self.phase = "ended"

    def record(self) -> RequestRecord:
        """Its figures now."""
        now_s = self._ended_s or time.monotonic()
        done = self.done
        figures = {} if done is None else {name: getattr(done, name) for name in _DONE_FIELDS}
        if not self.has_vram:
            figures |= {"hits": None, "lookups": None}
        return RequestRecord(
            number=self.number,
            route=self._route,
            began_unix_s=self._began_unix_s,
            phase=self.phase,
            ending=self.ending if self.phase == "ended" else None,
            error=self.error,
            prompt_tokens=self._prompt_tokens,
            prompt_done=self._prompt_done,
            generated=self.generated,
            reused=self._reused if done is None else done.reused,
            queue_s=_between(self._arrived_s, self._started_s),
            first_token_s=_between(self._arrived_s, self._first_token_s),
            total_s=round(now_s - self._arrived_s, 4),
            tokens_per_s=self._rate(now_s) if done is None else _per_second(done.generated, done.decode_ms),
            prompt_tokens_per_s=self._prompt_rate if done is None else _per_second(done.prompt_read, done.prompt_ms),
            **figures,
        )

    def _rate(self, now_s: float) -> float | None:
        times = self._token_times_s
        while times and now_s - times[0] > _RATE_WINDOW_S:
            times.popleft()
        span_s = now_s - times[0] if times else 0.0
        return round((len(times) - 1) / span_s, 2) if span_s >= _SHORTEST_SPAN_S else None


class Ledger:
    """All requests of this server. `observe` is told of every one that ends."""

    def __init__(self, observe: Callable[[RequestRecord], None]) -> None:
        self._observe = observe
        self._numbers = itertools.count(1)
        self._live: dict[int, LiveRequest] = {}
        self._recent: deque[RequestRecord] = deque(maxlen=RECENT_REQUESTS)
        self.totals = Totals()

    @property
    def tokens_so_far(self) -> tuple[int, int]:
        """Prompt and generated tokens, those of running requests included."""
        live = self._live.values()
        prompt = self.totals.prompt_tokens + sum(request.prompt_read for request in live)
        return prompt, self.totals.generated + sum(request.generated for request in live)

    def open(self, prompt_tokens: int) -> LiveRequest:
        """A request has come."""
        request = LiveRequest(next(self._numbers), route=ROUTE.get(), prompt_tokens=prompt_tokens)
        self._live[request.number] = request
        return request

    def close(self, request: LiveRequest) -> None:
        """A request has ended, one way or the other."""
        request.end()
        del self._live[request.number]
        record = request.record()
        self._recent.append(record)
        self._add(request)
        self._observe(record)

    def running(self) -> RequestRecord | None:
        """The request that the engine works on."""
        return next((request.record() for request in self._live.values() if request.phase in ("prompt", "decode")), None)

    def recent(self, after: int = 0) -> list[RequestRecord]:
        """The last requests in the order in which they ended; only those after the request `after` did."""
        records = list(self._recent)
        place = next((i for i, record in enumerate(records) if record.number == after), -1)
        return records[place + 1 :]

    def _add(self, request: LiveRequest) -> None:
        totals, done = self.totals, request.done
        totals.requests += 1
        setattr(totals, request.ending, getattr(totals, request.ending) + 1)
        totals.generated += request.generated
        if done is None:
            totals.prompt_tokens += request.prompt_read
            return
        totals.prompt_tokens += done.prompt_read
        totals.prompt_queries += done.prompt
        for name in ("reused", *_DONE_FIELDS):
            if name in ("hits", "lookups") and not request.has_vram:
                continue
            setattr(totals, name, getattr(totals, name) + getattr(done, name))


_DONE_FIELDS = ("prompt_ms", "decode_ms", "accepted", "offered", "hits", "lookups", "ram_blobs", "file_blobs", "file_mb")


def _between(start_s: float, end_s: float | None) -> float | None:
    return None if end_s is None else round(end_s - start_s, 4)


def _per_second(tokens: int, ms: float) -> float | None:
    return round(tokens * 1000 / ms, 2) if ms > 0 else None

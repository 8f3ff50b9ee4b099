"""What the line protocol can say: one frozen struct a message, the limits of its fields, the errors of its parsers.

Pure data; `engine.protocol` turns it into lines and back and gives these names on, so import them from there.
"""

from typing import Literal, TypeAlias

import msgspec

from engine.errors import BadRequest

PROTOCOL_VERSION = 1
MAX_LINE_BYTES = 16 << 20  # of a client's line, without its newline
MAX_INT = 2**31 - 1  # token ids and counts
MAX_SEED = 2**64 - 1
MAX_WORD_CHARS = 64  # of a request's id and of a PING's word
MAX_TOP_K = 64
MAX_TOP_LOGPROBS = 64
MAX_TEMPERATURE = 100.0
MAX_PENALTY = 100.0
MIN_REPEAT_PENALTY = 0.01

Finish: TypeAlias = Literal["stop", "length", "cancel"]
Line: TypeAlias = bytes | str


class BadEvent(ValueError):
    """A line from the engine whose verb is known but whose fields are not in the grammar."""


class BadCommand(BadRequest):
    """A line from the client that is not in the grammar; the text says what was expected."""

    def __init__(self, message: str, *, request_id: str | None = None) -> None:
        super().__init__(message)
        self.request_id = request_id


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How a token is picked from the logits; the defaults are what absent keys mean."""

    temperature: float = 0.0  # 0 = greedy
    top_k: int = 20  # 0 = all
    top_p: float = 1.0
    min_p: float = 0.0
    penalty_last_n: int = 64  # how many last tokens of prompt and reply the penalties look at
    penalty_repeat: float = 1.0
    penalty_freq: float = 0.0
    penalty_present: float = 0.0
    seed: int | None = None  # None = from the clock
    spec_min_p: float | None = None  # floor of a draft's probability; None = the engine's own


class Gen(msgspec.Struct, frozen=True, kw_only=True):
    """One request: read `tokens`, then generate up to `max_new` more."""

    max_new: int
    tokens: tuple[int, ...]
    id: str | None = None
    sampling: Sampling = Sampling()
    logprobs: int | None = None  # how many alternatives each T line carries; None = a bare T line
    score: tuple[int, ...] | None = None
    cache: bool = True
    ignore_eos: bool = False


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Cancel the request `id`, or without it the running one; the client saw `keep` generated tokens."""

    id: str | None = None
    keep: int | None = None


class Ping(msgspec.Struct, frozen=True):
    """Asks for a PONG with the same word."""

    word: str | None = None


class StatsRequest(msgspec.Struct, frozen=True):
    """Asks for a STATS line."""


class Quit(msgspec.Struct, frozen=True):
    """Finish what was accepted, then leave."""


Command: TypeAlias = Gen | Stop | Ping | StatsRequest | Quit


class Info(msgspec.Struct, frozen=True):
    """What was loaded and allocated. Several INFO lines add up."""

    fields: dict[str, int | str]

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The end-of-turn ids of the `eos` field."""
        return tuple(int(word) for word in str(self.fields.get("eos", "")).split(",") if word)


class Ready(msgspec.Struct, frozen=True):
    """The engine takes requests; `features` says which commands it knows beside GEN."""

    max_context: int
    features: tuple[str, ...] = ()


class Resume(msgspec.Struct, frozen=True):
    """How many prompt tokens came from the cache."""

    reused: int


class Progress(msgspec.Struct, frozen=True):
    """PP: prompt positions read so far."""

    done: int
    total: int
    ms: int
    tokens_per_s: float


class TokenLine(msgspec.Struct, frozen=True):
    """T: one generated token, with its log-probability and the likeliest alternatives where they were asked for."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a request that was carried out. Fields that do not apply are 0."""

    generated: int
    prompt: int
    prompt_ms: float
    decode_ms: float
    finish: Finish
    accepted: int = 0
    offered: int = 0
    reused: int = 0
    hits: int = 0
    lookups: int = 0
    ram_blobs: int = 0
    file_blobs: int = 0
    file_mb: int = 0
    prompt_read: int = 0
    id: str | None = None
    extra: dict[str, str] = {}


class Err(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a request that failed; after a fatal one the process leaves."""

    code: str
    message: str
    id: str | None = None
    fatal: bool = False


class Pong(msgspec.Struct, frozen=True):
    """The answer to PING."""

    word: str | None = None


class Stats(msgspec.Struct, frozen=True):
    """The answer to STATS."""

    fields: dict[str, int | str]


class Unknown(msgspec.Struct, frozen=True):
    """A line whose verb this version does not know; a client ignores it."""

    line: str


Event: TypeAlias = Info | Ready | Resume | Progress | TokenLine | Done | Err | Pong | Stats | Unknown

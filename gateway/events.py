"""What happens to a reply, in words that no API owns: every API renders these in its own shape. Pure data."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from engine.protocol import Done
from gateway.parsing.reasoning import Channel

FinishReason: TypeAlias = Literal["stop", "length"]


class TokenLogprob(msgspec.Struct, frozen=True):
    """One generated token's log-probability; `alternatives` are the likeliest tokens at its place."""

    text: str
    data: bytes
    logprob: float
    alternatives: tuple[TokenLogprob, ...] = ()


class PromptProgress(msgspec.Struct, frozen=True):
    """The engine has read part of the prompt."""

    done: int
    total: int


class TextDelta(msgspec.Struct, frozen=True):
    """More of the reply. `logprobs` belong to the answer's tokens since the last delta."""

    channel: Channel
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class ToolCallStart(msgspec.Struct, frozen=True):
    """A call begins; the index counts the calls of one reply."""

    index: int
    id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True):
    """More of a call's arguments, a JSON object as text."""

    index: int
    text: str


class ToolCallEnd(msgspec.Struct, frozen=True):
    """The call is whole."""

    index: int


class Timings(msgspec.Struct, frozen=True):
    """Counts and times of one request; every rate is finite."""

    cache_n: int  # prompt tokens taken from the cache
    prompt_n: int  # prompt tokens read
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    draft_n: int
    draft_n_accepted: int

    @classmethod
    def of(cls, done: Done) -> Timings:
        """From the engine's last line."""
        return cls(
            cache_n=done.reused,
            prompt_n=max(done.prompt - done.reused, 0),
            prompt_ms=done.prompt_ms,
            predicted_n=done.generated,
            predicted_ms=done.decode_ms,
            draft_n=done.offered,
            draft_n_accepted=done.accepted,
        )

    def as_dict(self) -> dict[str, float]:
        """With the derived rates, in llama.cpp's names."""
        return {
            "cache_n": self.cache_n,
            "prompt_n": self.prompt_n,
            "prompt_ms": self.prompt_ms,
            "prompt_per_token_ms": _ratio(self.prompt_ms, self.prompt_n),
            "prompt_per_second": _ratio(self.prompt_n * 1000, self.prompt_ms),
            "predicted_n": self.predicted_n,
            "predicted_ms": self.predicted_ms,
            "predicted_per_token_ms": _ratio(self.predicted_ms, self.predicted_n),
            "predicted_per_second": _ratio(self.predicted_n * 1000, self.predicted_ms),
            "draft_n": self.draft_n,
            "draft_n_accepted": self.draft_n_accepted,
        }


class Finished(msgspec.Struct, frozen=True):
    """The end of a reply that went well."""

    reason: FinishReason
    stop: str | None  # the stop string that ended it
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    timings: Timings


ToolCallEvent: TypeAlias = ToolCallStart | ToolCallArguments | ToolCallEnd
ReplyEvent: TypeAlias = PromptProgress | TextDelta | ToolCallEvent | Finished


def _ratio(amount: float, per: float) -> float:
    return amount / per if per > 0 else 0.0

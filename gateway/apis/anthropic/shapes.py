"""The JSON of Anthropic's messages API: the events of a streamed message, whole messages, usage, errors. Pure.

One block is open at a time, indexes count up from 0, and every block that was started is stopped. A whole message is its
stream, folded, so both say the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from gateway.chat.tools import ToolUse
from gateway.errors import ApiError, ContextLengthExceeded, EngineFailed, InternalError, InvalidRequest, Unavailable
from gateway.events import Finished, TextDelta
from gateway.parsing.reasoning import Channel

Json = dict[str, Any]

OVERLOADED = 529  # what this API says when it cannot serve a request now

# The clients of this API keep a thinking block only if it has a signature. Nobody checks this one.
_SIGNATURE = "unsigned"

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    OVERLOADED: "overloaded_error",
}


class NotNow(ApiError):
    """A request that cannot be served now, with this API's status for it."""

    status = OVERLOADED
    type = "overloaded_error"
    code = "overloaded"


def in_own_words(error: ApiError) -> ApiError:
    """The error with this API's status and, where its clients look for them, its words."""
    match error:
        case ContextLengthExceeded():  # its clients shorten the conversation when they read this
            numbers = error.details
            return InvalidRequest(f"prompt is too long: {numbers['n_prompt_tokens']} tokens > {numbers['n_ctx']} maximum")
        case EngineFailed():
            return InternalError(error.message)
        case _ if error.status == Unavailable.status:
            return NotNow(error.message)
    return error


def error_body(error: ApiError) -> Json:
    """An error, alone or as an event of a stream."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


class EventWriter:
    """The events of one streamed message."""

    def __init__(
        self, *, message_id: str, model: str, prompt_tokens: int, shows_thinking: bool, tool_use: ToolUse
    ) -> None:
        self._id = message_id
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._shows_thinking = shows_thinking
        self.tool_use = tool_use
        self.called: list[str] = []  # names
        self._next_index = 0
        self._open: str | None = None  # the type of the block that is open
        self._arguments_sent = False  # any, of the call that is open

    def start(self) -> list[Json]:
        """The message begins; what came from the cache is not known yet."""
        message: Json = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(self._prompt_tokens, cached_tokens=0, output_tokens=0),
        }
        return [{"type": "message_start", "message": message}]

    def text(self, delta: TextDelta) -> list[Json]:
        """More of the answer, or of the thinking."""
        if delta.channel is Channel.REASONING:
            events = self._opened("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            shown = {"type": "thinking_delta", "thinking": delta.text}
            return [*events, self._delta(shown)] if self._shows_thinking else events
        if not delta.text:
            return []
        return [
            *self._opened("text", {"type": "text", "text": ""}),
            self._delta({"type": "text_delta", "text": delta.text}),
        ]

    def call(self, call_id: str, name: str) -> list[Json]:
        """A tool call begins."""
        call_id = "toolu_" + call_id.removeprefix("call_")
        events = self._opened("tool_use", {"type": "tool_use", "id": call_id, "name": name, "input": {}}, anew=True)
        self._arguments_sent = False
        self.called.append(name)
        return events

    def arguments(self, text: str) -> list[Json]:
        """More of the JSON of its arguments."""
        if not text:
            return []
        self._arguments_sent = True
        return [self._delta({"type": "input_json_delta", "partial_json": text})]

    def finish(self, finished: Finished) -> list[Json]:
        """The message ends."""
        if finished.reason == "length":
            reason = "max_tokens"
        elif finished.stop is not None:
            reason = "stop_sequence"
        else:
            reason = "tool_use" if self.called else "end_turn"
        return [
            *self._closed(),
            {
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": finished.stop},
                "usage": _usage(
                    finished.prompt_tokens,
                    cached_tokens=finished.cached_tokens,
                    output_tokens=finished.completion_tokens,
                ),
            },
            {"type": "message_stop"},
        ]

    def _opened(self, kind: str, block: Json, *, anew: bool = False) -> list[Json]:
        """The events after which a block of this type is open; `anew`: not the one that may be open already."""
        if self._open == kind and not anew:
            return []
        events = self._closed()
        self._open = kind
        return [*events, {"type": "content_block_start", "index": self._next_index, "content_block": block}]

    def _closed(self) -> list[Json]:
        """The events after which no block is open."""
        if self._open is None:
            return []
        events = []
        if self._open == "thinking":
            events.append(self._delta({"type": "signature_delta", "signature": _SIGNATURE}))
        elif self._open == "tool_use" and not self._arguments_sent:
            events.append(self._delta({"type": "input_json_delta", "partial_json": "{}"}))
        events.append({"type": "content_block_stop", "index": self._next_index})
        self._open = None
        self._next_index += 1
        return events

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._next_index, "delta": delta}


# Where the text of a delta belongs in its block.
_DELTA_FIELDS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}


def folded(events: Iterable[Json]) -> Json:
    """The whole message that a stream of events amounts to."""
    message: Json = {}
    texts: list[dict[str, list[str]]] = []  # of every block, by field
    for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append(event["content_block"])
                texts.append({})
            case "content_block_delta":
                field = _DELTA_FIELDS[event["delta"]["type"]]
                texts[-1].setdefault(field, []).append(event["delta"][field])
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
    for block, fields in zip(message["content"], texts, strict=True):
        block.update((field, "".join(pieces)) for field, pieces in fields.items())
    message["content"] = [block for block in message["content"] if _with_input(block)]
    return message


def _with_input(block: Json) -> bool:
    """Give a tool call its arguments; false for one that was cut off, which nobody may carry out."""
    if block["type"] != "tool_use":
        return True
    try:
        block["input"] = msgspec.json.decode(block.pop("partial_json"))
    except msgspec.DecodeError:
        return False
    return True


def _usage(prompt_tokens: int, *, cached_tokens: int, output_tokens: int) -> Json:
    """Token counts; prompt tokens are counted once, as read or as taken from the cache."""
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": output_tokens,
    }

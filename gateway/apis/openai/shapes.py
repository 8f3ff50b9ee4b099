"""The JSON of OpenAI's chat API: chunks, whole replies, usage, errors. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.errors import ApiError
from gateway.events import Finished, TextDelta, TokenLogprob, ToolCallArguments, ToolCallStart
from gateway.parsing.reasoning import Channel

Json = dict[str, Any]


def error_body(error: ApiError) -> Json:
    """An error, alone or as an event of a stream."""
    body: Json = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return {"error": body | error.details}


class ChunkWriter:
    """The chunks of one streamed reply: the role goes into the first only."""

    def __init__(self, *, reply_id: str, created_s: int, model: str, include_usage: bool) -> None:
        self._head = {"id": reply_id, "object": "chat.completion.chunk", "created": created_s, "model": model}
        self._include_usage = include_usage
        self._role_sent = False
        self.called: list[str] = []  # the functions, in order

    def text(self, delta: TextDelta) -> Json:
        """A piece of the reply."""
        name = "reasoning_content" if delta.channel is Channel.REASONING else "content"
        return self._chunk({name: delta.text}, logprobs=delta.logprobs)

    def call(self, event: ToolCallStart | ToolCallArguments) -> Json:
        """A piece of a call: who is called comes first, alone."""
        if isinstance(event, ToolCallStart):
            self.called.append(event.name)
            call: Json = {"id": event.id, "type": "function", "function": {"name": event.name, "arguments": ""}}
        else:
            call = {"function": {"arguments": event.text}}
        return self._chunk({"tool_calls": [{"index": event.index, **call}]})

    def finish(self, finished: Finished) -> Json:
        """The chunk that says why it ended."""
        return self._chunk({}, finish_reason=_finish_reason(finished, self.called)) | {"timings": finished.timings.as_dict()}

    def usage(self, finished: Finished) -> list[Json]:
        """The usage chunk, for those who asked for it: the only one without a choice."""
        return [{**self._head, "choices": [], "usage": usage(finished)}] if self._include_usage else []

    def _chunk(self, delta: Json, *, finish_reason: str | None = None, logprobs: tuple[TokenLogprob, ...] = ()) -> Json:
        if not self._role_sent:
            self._role_sent = True
            delta = {"role": "assistant", **delta}
        choice: Json = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        if logprobs:
            choice["logprobs"] = _logprobs(logprobs)
        chunk: Json = {**self._head, "choices": [choice]}
        return chunk | {"usage": None} if self._include_usage else chunk


class ReplyWriter:
    """One reply that is sent as a whole."""

    def __init__(self, *, reply_id: str, created_s: int, model: str, with_logprobs: bool) -> None:
        self._head = {"id": reply_id, "object": "chat.completion", "created": created_s, "model": model}
        self._with_logprobs = with_logprobs
        self._texts: dict[Channel, list[str]] = {Channel.CONTENT: [], Channel.REASONING: []}
        self._logprobs: list[TokenLogprob] = []
        self._calls: list[Json] = []

    @property
    def called(self) -> list[str]:
        """The functions, in order."""
        return [call["function"]["name"] for call in self._calls]

    def add(self, delta: TextDelta) -> None:
        """One more piece."""
        self._texts[delta.channel].append(delta.text)
        self._logprobs.extend(delta.logprobs)

    def add_call(self, event: ToolCallStart | ToolCallArguments) -> None:
        """One more piece of a call."""
        if isinstance(event, ToolCallStart):
            self._calls.append({"id": event.id, "type": "function", "function": {"name": event.name, "arguments": ""}})
        else:
            self._calls[event.index]["function"]["arguments"] += event.text

    def whole(self, finished: Finished) -> Json:
        """The reply."""
        content = "".join(self._texts[Channel.CONTENT])
        message: Json = {"role": "assistant", "content": content if content or not self._calls else None}
        if reasoning := "".join(self._texts[Channel.REASONING]):
            message["reasoning_content"] = reasoning
        if self._calls:
            message["tool_calls"] = self._calls
        logprobs = _logprobs(tuple(self._logprobs)) if self._with_logprobs else None
        choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": _finish_reason(finished, self._calls)}
        return {**self._head, "choices": [choice], "usage": usage(finished), "timings": finished.timings.as_dict()}


def _finish_reason(finished: Finished, calls: Sequence[object]) -> str:
    return "tool_calls" if calls and finished.reason == "stop" else finished.reason


def usage(finished: Finished) -> Json:
    """Token counts."""
    return {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "total_tokens": finished.prompt_tokens + finished.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": finished.cached_tokens},
    }


def _logprobs(entries: tuple[TokenLogprob, ...]) -> Json:
    return {
        "content": [
            _entry(entry) | {"top_logprobs": [_entry(alternative) for alternative in entry.alternatives]} for entry in entries
        ],
        "refusal": None,
    }


def _entry(entry: TokenLogprob) -> Json:
    return {"token": entry.text, "logprob": entry.logprob, "bytes": list(entry.data)}

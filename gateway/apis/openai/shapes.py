"""The JSON of OpenAI's chat API: chunks, whole replies, usage, errors. Pure."""

from __future__ import annotations

from typing import Any

from gateway.errors import ApiError
from gateway.events import Finished, TextDelta, TokenLogprob
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

    def text(self, delta: TextDelta) -> Json:
        """A piece of the reply."""
        name = "reasoning_content" if delta.channel is Channel.REASONING else "content"
        return self._chunk({name: delta.text}, logprobs=delta.logprobs)

    def finish(self, finished: Finished) -> Json:
        """The chunk that says why it ended."""
        return self._chunk({}, finish_reason=finished.reason) | {"timings": finished.timings.as_dict()}

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

    def add(self, delta: TextDelta) -> None:
        """One more piece."""
        self._texts[delta.channel].append(delta.text)
        self._logprobs.extend(delta.logprobs)

    def whole(self, finished: Finished) -> Json:
        """The reply."""
        message: Json = {"role": "assistant", "content": "".join(self._texts[Channel.CONTENT])}
        if reasoning := "".join(self._texts[Channel.REASONING]):
            message["reasoning_content"] = reasoning
        logprobs = _logprobs(tuple(self._logprobs)) if self._with_logprobs else None
        choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finished.reason}
        return {**self._head, "choices": [choice], "usage": usage(finished), "timings": finished.timings.as_dict()}


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

"""The chat request as OpenAI's clients send it: typed, checked with the path of what is wrong, reduced to what we do.

Unknown fields are ignored, as that API does; known fields that would change the reply and are not supported here are
refused by name. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from engine.protocol import MAX_PENALTY, MAX_SEED, MAX_TEMPERATURE, MAX_TOP_K, Sampling
from gateway.chat.tools import Tool, ToolCall, ToolChoice, ToolUse, tool_use
from gateway.errors import InvalidRequest, Unsupported
from gateway.text.stops import MAX_STOPS

DEFAULT_TEMPERATURE = 0.7
MAX_TOP_LOGPROBS = 20

_THINKING_OFF = frozenset({"none", "off", "minimal", "disabled", "false"})
_EFFORTS = frozenset({"low", "medium", "high", "xhigh", "max"})


class ContentPart(msgspec.Struct):
    """One element of a message's content list."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Message(msgspec.Struct):
    """One message of the history as it was sent."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    function_call: Any = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ChatBody(msgspec.Struct):
    """The JSON body of POST /v1/chat/completions."""

    messages: list[Message]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: Any = None


class ChatRequest(msgspec.Struct, frozen=True):
    """A chat request that has passed every check."""

    messages: list[Message]
    sampling: Sampling
    stops: tuple[str, ...]
    max_tokens: int | None  # None: as far as the context goes
    stream: bool
    include_usage: bool
    top_logprobs: int | None  # None: no log-probabilities wanted
    template_variables: dict[str, Any]
    model: str | None
    tool_use: ToolUse = ToolUse()


_decoder = msgspec.json.Decoder(ChatBody)


def parse_chat_request(body: bytes, defaults: Sampling) -> ChatRequest:
    """Decode and check a body; raises InvalidRequest whose text names the field."""
    try:
        chat = _decoder.decode(body)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `")
        raise InvalidRequest(f"{text}{' at ' + path[:-1] if path else ''}", param=path[2:-1] or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    _refuse_unsupported(chat)
    if not chat.messages:
        raise InvalidRequest("messages must not be empty", param="messages")
    return ChatRequest(
        messages=chat.messages,
        sampling=_sampling(chat, defaults),
        stops=_stops(chat.stop),
        max_tokens=_max_tokens(chat),
        stream=bool(chat.stream),
        include_usage=bool(chat.stream_options and chat.stream_options.include_usage),
        top_logprobs=_top_logprobs(chat),
        template_variables=_template_variables(chat),
        model=chat.model,
        tool_use=tool_use(chat.tools, chat.tool_choice, parallel=chat.parallel_tool_calls is not False),
    )


def sampling_defaults(metadata: Mapping[str, Any], pack: Mapping[str, float]) -> Sampling:
    """What applies when a client says nothing: the pack's word, else the file's `general.sampling.*`, else 0.7."""

    def pick(*names: str) -> float | None:
        for values, prefix in ((pack, ""), (metadata, "general.sampling.")):
            for name in names:
                value = values.get(prefix + name)
                if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                    return float(value)
        return None

    temperature, top_p, top_k, min_p = pick("temperature", "temp"), pick("top_p"), pick("top_k"), pick("min_p")
    given: dict[str, Any] = {
        "temperature": DEFAULT_TEMPERATURE if temperature is None else min(max(temperature, 0.0), MAX_TEMPERATURE),
        "top_p": None if top_p is None else min(max(top_p, 0.0), 1.0),
        "top_k": None if top_k is None else _candidates(int(top_k)),
        "min_p": None if min_p is None else min(max(min_p, 0.0), 1.0),
    }
    return Sampling(**{name: value for name, value in given.items() if value is not None})


def _candidates(top_k: int) -> int:
    """A client's top_k as the engine takes it: -1 and 0 mean all, more than it sorts means as many as it sorts."""
    return 0 if top_k <= 0 else min(top_k, MAX_TOP_K)


def _refuse_unsupported(chat: ChatBody) -> None:
    if chat.functions:
        raise Unsupported("functions are not supported by this server; tools are", param="functions")
    for index, message in enumerate(chat.messages):
        path = f"messages[{index}]"
        if message.role == "function" or message.function_call:
            raise Unsupported(f"{path} belongs to a function call; tools are supported instead", param=path)
        if message.tool_calls and message.role != "assistant":
            raise InvalidRequest(f"{path}.tool_calls: only the assistant calls tools", param=f"{path}.tool_calls")
    if chat.n is not None and chat.n != 1:
        raise Unsupported("n must be 1: this server gives one reply a request", param="n")
    if chat.response_format is not None and chat.response_format.get("type") != "text":
        raise Unsupported("response_format other than text is not supported by this server", param="response_format")
    if chat.logit_bias:
        raise Unsupported("logit_bias is not supported by this server", param="logit_bias")
    if chat.audio is not None or (chat.modalities is not None and set(chat.modalities) - {"text"}):
        raise Unsupported("this server replies with text only", param="modalities")


def _sampling(chat: ChatBody, defaults: Sampling) -> Sampling:
    given: dict[str, Any] = {
        "temperature": _within("temperature", chat.temperature, 0.0, MAX_TEMPERATURE),
        "top_p": _within("top_p", chat.top_p, 0.0, 1.0),
        "top_k": None if chat.top_k is None else _candidates(chat.top_k),
        "min_p": _within("min_p", chat.min_p, 0.0, 1.0),
        "penalty_repeat": _within("repetition_penalty", chat.repetition_penalty, 0.01, MAX_PENALTY),
        "penalty_freq": _within("frequency_penalty", chat.frequency_penalty, -MAX_PENALTY, MAX_PENALTY),
        "penalty_present": _within("presence_penalty", chat.presence_penalty, -MAX_PENALTY, MAX_PENALTY),
        "seed": None if chat.seed is None or chat.seed == -1 else chat.seed % (MAX_SEED + 1),
    }
    return msgspec.structs.replace(defaults, **{name: value for name, value in given.items() if value is not None})


def _within(name: str, value: float | None, least: float, most: float) -> float | None:
    if value is not None and not least <= value <= most:
        raise InvalidRequest(f"{name} must be between {least:g} and {most:g}, not {value:g}", param=name)
    return value


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = tuple(text for text in ([stop] if isinstance(stop, str) else stop or []) if text)
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"at most {MAX_STOPS} stop strings, not {len(stops)}", param="stop")
    return stops


def _max_tokens(chat: ChatBody) -> int | None:
    name = "max_tokens" if chat.max_completion_tokens is None else "max_completion_tokens"
    value: int | None = getattr(chat, name)
    if value is None or value == -1:
        return None
    if value < 0:
        raise InvalidRequest(f"{name} must not be negative", param=name)
    return value


def _top_logprobs(chat: ChatBody) -> int | None:
    if not chat.logprobs:
        if chat.top_logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
        return None
    count = chat.top_logprobs or 0
    if not 0 <= count <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}, not {count}", param="top_logprobs")
    return count


def _template_variables(chat: ChatBody) -> dict[str, Any]:
    variables = dict(chat.chat_template_kwargs or {})
    for name in ("messages", "add_generation_prompt", "tools"):
        if name in variables:
            raise InvalidRequest(f"chat_template_kwargs must not set {name}", param=f"chat_template_kwargs.{name}")
    if chat.reasoning_effort is not None:
        if chat.reasoning_effort in _THINKING_OFF:
            variables.setdefault("enable_thinking", False)
        elif chat.reasoning_effort in _EFFORTS:
            variables.setdefault("enable_thinking", True)
            variables.setdefault("reasoning_effort", chat.reasoning_effort)
        else:
            known = ", ".join(sorted(_EFFORTS | _THINKING_OFF))
            raise InvalidRequest(f"reasoning_effort {chat.reasoning_effort!r} is not known ({known})", param="reasoning_effort")
    return variables

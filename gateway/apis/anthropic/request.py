"""The body of POST /v1/messages as Anthropic's clients send it: typed, checked with the path of what is wrong.

It becomes the neutral chat request that every API's requests become, so the prompt is the same whoever asks. Unknown
fields, cache marks and metadata are ignored. Pure.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.protocol import MAX_TEMPERATURE, MAX_TOP_K, Sampling
from gateway.apis.anthropic.blocks import TextBlock, Turn
from gateway.apis.anthropic.history import messages_of
from gateway.apis.anthropic.tools import Tool, ToolChoice, use_of
from gateway.bodies import decode_body
from gateway.chat.request import ChatRequest
from gateway.errors import InvalidRequest, Unsupported
from gateway.text.stops import MAX_STOPS

# A budget for thinking, in tokens, as an effort: below the number it is the word.
_EFFORTS_OF_BUDGETS = ((2048, "low"), (8192, "medium"))
_EFFORT_BEYOND = "high"


class Thinking(msgspec.Struct):
    """How much the model shall think; left out, it shall not."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputConfig(msgspec.Struct):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: Any = None


class MessagesBody(msgspec.Struct):
    """The JSON body."""

    messages: list[Turn]
    model: str | None = None
    max_tokens: int | None = None
    system: str | list[TextBlock] | None = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    mcp_servers: list[Any] | None = None
    container: Any = None


class MessagesRequest(msgspec.Struct, frozen=True):
    """A request that has passed every check."""

    chat: ChatRequest
    begun: str  # how the reply begins
    shows_thinking: bool  # or only that there was some


def parse_messages(body: bytes, defaults: Sampling, *, counting: bool = False) -> MessagesRequest:
    """Decode and check a body; raises InvalidRequest whose text names the field. Counting needs no max_tokens."""
    given = decode_body(_decoder, body)
    if given.max_tokens is None and not counting:
        raise InvalidRequest("max_tokens is missing", param="max_tokens")
    if given.max_tokens is not None and given.max_tokens < 0:
        raise InvalidRequest(f"max_tokens must not be negative, not {given.max_tokens}", param="max_tokens")
    _refuse_unsupported(given)
    messages, begun = messages_of(given.system, given.messages)
    chat = ChatRequest(
        messages=messages,
        sampling=_sampling(given, defaults),
        stops=_stops(given.stop_sequences),
        max_tokens=given.max_tokens,
        stream=bool(given.stream),
        include_usage=True,
        top_logprobs=None,
        template_variables=_template_variables(given),
        model=given.model,
        tool_use=use_of(given.tools, given.tool_choice),
    )
    return MessagesRequest(chat, begun, shows_thinking=given.thinking is None or given.thinking.display != "omitted")


_decoder = msgspec.json.Decoder(MessagesBody)


def _refuse_unsupported(given: MessagesBody) -> None:
    if given.output_config is not None and given.output_config.format is not None:
        raise Unsupported("output_config.format is not supported by this server", param="output_config.format")
    for name in ("mcp_servers", "container"):
        if getattr(given, name):
            raise Unsupported(f"{name} is not supported by this server", param=name)


def _sampling(given: MessagesBody, defaults: Sampling) -> Sampling:
    for name, most in (("temperature", MAX_TEMPERATURE), ("top_p", 1.0)):
        value = getattr(given, name)
        if value is not None and not 0.0 <= value <= most:
            raise InvalidRequest(f"{name} must be between 0 and {most:g}, not {value:g}", param=name)
    values = {
        "temperature": given.temperature,
        "top_p": given.top_p,
        "top_k": None if given.top_k is None else min(max(given.top_k, 0), MAX_TOP_K),
    }
    return msgspec.structs.replace(defaults, **{name: value for name, value in values.items() if value is not None})


def _stops(sequences: list[str] | None) -> tuple[str, ...]:
    stops = tuple(text for text in sequences or () if text)
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"stop_sequences: at most {MAX_STOPS}, not {len(stops)}", param="stop_sequences")
    return stops


def _template_variables(given: MessagesBody) -> dict[str, Any]:
    """Thinking and effort as templates know them. That API thinks only when it is asked to."""
    thinking = given.thinking
    if thinking is None or thinking.type == "disabled":
        return {"enable_thinking": False}
    effort: str | None = None if given.output_config is None else given.output_config.effort
    if effort is None and thinking.budget_tokens is not None:
        budget = thinking.budget_tokens
        effort = next((word for below, word in _EFFORTS_OF_BUDGETS if budget < below), _EFFORT_BEYOND)
    return {"enable_thinking": True} | ({} if effort is None else {"reasoning_effort": effort})

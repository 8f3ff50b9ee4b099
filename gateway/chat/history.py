"""The history as a template may have it: plain strings, roles that templates know, nothing empty.

Three forms, tried in turn until the template takes one: `as_sent` keeps order and turns but for leading system messages,
which become one; `alternating` has every system text at the head and neighbours of one role merged; `without_system` puts
the system text into the first user message. The later ones are for templates that need them only, so that a late system
message does not change the prompt's beginning (and what is cached of it) without need. Pure.
"""

from __future__ import annotations

from typing import Any

from gateway.chat.request import Message
from gateway.chat.tools import calls_as_shown
from gateway.errors import InvalidRequest, Unsupported

_SEPARATOR = "\n\n"


def as_sent(messages: list[Message]) -> list[dict[str, Any]]:
    """Contents joined to strings, `developer` read as `system`, empty assistant turns left out."""
    turns: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        content = _text(message, index)
        if message.role == "assistant" and not (content or message.reasoning_content or message.tool_calls):
            continue
        turn: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": content}
        if message.role == "assistant" and message.reasoning_content:
            turn["reasoning_content"] = message.reasoning_content
        if message.tool_calls:
            turn["tool_calls"] = calls_as_shown(message.tool_calls, f"messages[{index}].tool_calls")
        if message.role == "tool":
            given = {"tool_call_id": message.tool_call_id, "name": message.name}
            turn |= {key: value for key, value in given.items() if value is not None}
        if len(turns) == 1 and turns[0]["role"] == turn["role"] == "system":
            turns[0] = _joined(turns[0], turn)
        else:
            turns.append(turn)
    if not turns:
        raise InvalidRequest("messages holds nothing but empty assistant turns", param="messages")
    return turns


def has_late_system(turns: list[dict[str, Any]]) -> bool:
    """Whether a system message comes after the first turn."""
    return any(turn["role"] == "system" for turn in turns[1:])


def alternating(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same turns for a strict template: system texts first and joined, then no two neighbours of one role.

    Results of tools stay apart, and so does what follows a call.
    """
    system = [turn["content"] for turn in turns if turn["role"] == "system" and turn["content"]]
    merged: list[dict[str, Any]] = []
    for turn in turns:
        if turn["role"] == "system":
            continue
        if merged and merged[-1]["role"] == turn["role"] != "tool" and "tool_calls" not in merged[-1]:
            merged[-1] = _joined(merged[-1], turn)
        else:
            merged.append(dict(turn))
    if system:
        merged.insert(0, {"role": "system", "content": _SEPARATOR.join(system)})
    return merged


def without_system(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The alternating form with the system text in front of the first user message, for templates without that role."""
    merged = alternating(turns)
    if len(merged) < 2 or merged[0]["role"] != "system" or merged[1]["role"] != "user":
        return merged
    return [{"role": "user", "content": merged[0]["content"] + _SEPARATOR + merged[1]["content"]}, *merged[2:]]


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    result = {**second, **first}
    for key in ("content", "reasoning_content"):
        texts = [text for text in (first.get(key), second.get(key)) if text]
        if texts or key == "content":
            result[key] = _SEPARATOR.join(texts)
    return result


def _text(message: Message, index: int) -> str:
    """A message's content as one string; refuses what is not text."""
    if message.content is None:
        if message.role != "assistant":
            raise InvalidRequest(f"messages[{index}].content is missing", param=f"messages[{index}].content")
        return ""
    if isinstance(message.content, str):
        return message.content
    texts = []
    for part_index, part in enumerate(message.content):
        path = f"messages[{index}].content[{part_index}]"
        if part.type in ("text", "input_text", "output_text"):
            if part.text is None:
                raise InvalidRequest(f"{path}.text is missing", param=f"{path}.text")
            texts.append(part.text)
        elif part.type == "refusal":
            texts.append(part.refusal or "")
        else:
            raise Unsupported(f"{path} is of type {part.type!r}: this model reads text only", param=path)
    return "\n".join(text for text in texts if text)

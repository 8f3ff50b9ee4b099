"""The history of Anthropic's API as the neutral one: what a turn says, thinks, calls and got back, in its order. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.apis.anthropic.blocks import (
    Block,
    RedactedThinkingBlock,
    Result,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
)
from gateway.chat.request import Message
from gateway.chat.tools import CalledFunction, ToolCall
from gateway.errors import InvalidRequest, Unsupported

_SEPARATOR = "\n\n"

# Claude Code puts a line in front of its system text that differs in every request and is not meant for the model. It
# would keep the prompt cache from ever matching.
_VOLATILE_LINE = "x-anthropic-billing-header:"


def messages_of(system: str | list[TextBlock] | None, turns: list[Turn]) -> tuple[list[Message], str]:
    """The whole history, and how the reply begins if the last turn is the assistant's.

    Raises InvalidRequest that names a block which cannot be shown to the model.
    """
    if not turns:
        raise InvalidRequest("messages must not be empty", param="messages")
    messages = []
    if text := system_text(system):
        messages.append(Message(role="system", content=text))
    for index, turn in enumerate(turns):
        messages.extend(_messages(turn, f"messages[{index}].content"))
    if turns[-1].role != "assistant":
        return messages, ""
    begun = messages.pop()
    if begun.reasoning_content or begun.tool_calls:
        path = f"messages[{len(turns) - 1}].content"
        raise Unsupported(f"{path}: a reply that is begun cannot hold thinking or calls", param=path)
    return messages, str(begun.content or "")


def system_text(system: str | list[TextBlock] | None) -> str:
    """The system text, its blocks joined, without the line that is not for the model."""
    texts = [system or ""] if not isinstance(system, list) else [block.text for block in system]
    return _SEPARATOR.join(text for text in map(_without_volatile_line, texts) if text)


def _without_volatile_line(text: str) -> str:
    if not text.startswith(_VOLATILE_LINE):
        return text
    return text.partition("\n")[2].lstrip("\n")


def _messages(turn: Turn, path: str) -> list[Message]:
    if isinstance(turn.content, str):
        return [Message(role=turn.role, content=turn.content)]
    match turn.role:
        case "assistant":
            return [_assistant(turn.content, path)]
        case "user":
            return _user(turn.content, path)
        case "system":
            return [Message(role="system", content=_joined(turn.content, path))]


def _assistant(blocks: list[Block], path: str) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for index, block in enumerate(blocks):
        match block:
            case TextBlock():
                texts.append(block.text)
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case RedactedThinkingBlock():
                continue  # it is nothing but a cipher text
            case ToolUseBlock():
                calls.append(ToolCall(CalledFunction(block.name, block.input), id=block.id))
            case _:
                raise _refusal(block, f"{path}[{index}]")
    return Message(
        role="assistant",
        content="".join(texts),
        reasoning_content=_SEPARATOR.join(thought for thought in thoughts if thought) or None,
        tool_calls=calls or None,
    )


def _user(blocks: list[Block], path: str) -> list[Message]:
    """Texts and results of tools as messages of their own, in the order in which they stand."""
    messages: list[Message] = []
    texts: list[str] = []

    def end_text() -> None:
        if text := "\n".join(text for text in texts if text):
            messages.append(Message(role="user", content=text))
        texts.clear()

    for index, block in enumerate(blocks):
        match block:
            case TextBlock():
                texts.append(block.text)
            case ToolResultBlock():
                end_text()
                content = _result(block, f"{path}[{index}].content")
                messages.append(Message(role="tool", tool_call_id=block.tool_use_id, content=content))
            case _:
                raise _refusal(block, f"{path}[{index}]")
    end_text()
    return messages or [Message(role="user", content="")]


def _result(block: ToolResultBlock, path: str) -> str:
    text = block.content or "" if not isinstance(block.content, list) else _joined(block.content, path)
    return f"Error: {text}" if block.is_error else text


def _joined(blocks: Sequence[Block | Result], path: str) -> str:
    texts = []
    for index, block in enumerate(blocks):
        if not isinstance(block, TextBlock):
            raise _refusal(block, f"{path}[{index}]")
        texts.append(block.text)
    return "\n".join(text for text in texts if text)


def _refusal(block: Block | Result, path: str) -> Unsupported:
    kind = block.__struct_config__.tag
    return Unsupported(f"{path} is of type {kind!r}, which cannot be given to this model here", param=path)

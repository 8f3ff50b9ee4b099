"""The history of Anthropic's API as the neutral one: what a turn says, thinks, calls and got back, in its order. Pure."""

from __future__ import annotations

from gateway.apis.anthropic.blocks import Block, RedactedThinkingBlock, TextBlock, ThinkingBlock, Turn
from gateway.chat.request import Message
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
    if begun.reasoning_content:
        last = len(turns) - 1
        raise Unsupported(f"messages[{last}]: a reply that is begun cannot hold thinking", param=f"messages[{last}].content")
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
        case _:
            return [Message(role=turn.role, content=_joined(turn.content, path))]


def _assistant(blocks: list[Block], path: str) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    for index, block in enumerate(blocks):
        match block:
            case TextBlock():
                texts.append(block.text)
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case RedactedThinkingBlock():
                continue  # it is nothing but a cipher text
            case _:
                raise _refusal(block, f"{path}[{index}]")
    return Message(
        role="assistant",
        content="".join(texts),
        reasoning_content=_SEPARATOR.join(thought for thought in thoughts if thought) or None,
    )


def _joined(blocks: list[Block], path: str) -> str:
    texts = []
    for index, block in enumerate(blocks):
        if not isinstance(block, TextBlock):
            raise _refusal(block, f"{path}[{index}]")
        texts.append(block.text)
    return "\n".join(text for text in texts if text)


def _refusal(block: Block, path: str) -> Unsupported:
    kind = block.__struct_config__.tag
    return Unsupported(f"{path} is of type {kind!r}, which cannot be given to this model here", param=path)

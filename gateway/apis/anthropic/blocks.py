"""What a message of Anthropic's API consists of, as it is sent: one struct for each type of content block.

Types that this server cannot use are named here too, so that they are refused by name and never dropped. Pure data.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str


class RedactedThinkingBlock(msgspec.Struct, tag_field="type", tag="redacted_thinking"):
    """Another server's thinking, which nobody can read here."""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any] | None = None


class ImageBlock(msgspec.Struct, tag_field="type", tag="image"):
    """Refused: the model reads text only."""


class DocumentBlock(msgspec.Struct, tag_field="type", tag="document"):
    """Refused: the model reads text only."""


class SearchResultBlock(msgspec.Struct, tag_field="type", tag="search_result"):
    """Refused: citations are not supported."""


class ToolReferenceBlock(msgspec.Struct, tag_field="type", tag="tool_reference"):
    """Refused: every tool is in the prompt."""


Result: TypeAlias = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock


class ToolResultBlock(msgspec.Struct, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[Result] | None = None
    is_error: bool | None = None


Block: TypeAlias = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
)


class Turn(msgspec.Struct):
    """One message of the history."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]

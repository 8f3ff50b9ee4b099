"""Which way of writing calls a model has learned: its chat template shows it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from gateway.parsing.tools import hermes_json, qwen_xml
from gateway.parsing.tools.blocks import OPENING, Call, ToolCallParser

ToolFormat: TypeAlias = Callable[[str, Mapping[str, Mapping[str, Any]]], Call | None]

# All of these in a template: that format. The first that fits, so the more particular comes first.
_FORMATS: tuple[tuple[tuple[str, ...], ToolFormat], ...] = (
    ((OPENING, "<function="), qwen_xml.read),
    ((OPENING, "arguments"), hermes_json.read),
)


def tool_format(template: str) -> ToolFormat | None:
    """The format of a template's source; None if it shows none that we read."""
    return next((read for words, read in _FORMATS if all(word in template for word in words)), None)


def tool_parser(read: ToolFormat, tools: Iterable[dict[str, Any]]) -> ToolCallParser:
    """A parser for one reply to a request that offers these tools (in OpenAI's shape)."""
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    return ToolCallParser(lambda inside: read(inside, schemas))

"""Tools as Anthropic's clients describe them, in the neutral form. Pure.

A tool of a type that only Anthropic's own models know (its schema is not in the request) is refused by name.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gateway.chat.tools import ChosenFunction, Function, ToolUse, tool_use
from gateway.chat.tools import Tool as FunctionTool
from gateway.chat.tools import ToolChoice as FunctionChoice
from gateway.errors import InvalidRequest, Unsupported

_CUSTOM = ("custom", None)


class Tool(msgspec.Struct):
    """A function that the client offers."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct):
    """Whether and what the model shall call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def use_of(tools: list[Tool] | None, choice: ToolChoice | None) -> ToolUse:
    """What the model may call."""
    functions = [_function(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())]
    if choice is None:
        return tool_use(functions, "auto", parallel=True)
    return tool_use(functions, _choice(choice), parallel=not choice.disable_parallel_tool_use)


def _function(tool: Tool, path: str) -> FunctionTool:
    if tool.type not in _CUSTOM:
        raise Unsupported(f"{path} is of type {tool.type!r}, which this model does not know", param=path)
    if tool.input_schema is None:
        raise InvalidRequest(f"{path}.input_schema is missing", param=f"{path}.input_schema")
    return FunctionTool("function", Function(tool.name, tool.description, tool.input_schema))


def _choice(choice: ToolChoice) -> Literal["none", "auto", "required"] | FunctionChoice:
    match choice.type:
        case "any":
            return "required"
        case "tool":
            if choice.name is None:
                raise InvalidRequest("tool_choice.name is missing", param="tool_choice.name")
            return FunctionChoice("function", ChosenFunction(choice.name))
        case _:
            return choice.type

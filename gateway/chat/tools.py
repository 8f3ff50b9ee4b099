"""The tools of a request in OpenAI's shape: definitions, the choice among them, and the calls of the history. Pure.

What a model cannot be held to while it writes (a call that must come) is checked when the reply is there.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gateway.errors import InvalidRequest, ToolNotCalled, Unsupported


class Function(msgspec.Struct):
    """What a tool is called, for what it is, and the JSON schema of its parameters."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct):
    """One definition."""

    type: Literal["function"]
    function: Function


class CalledFunction(msgspec.Struct):
    """Arguments are JSON as text; some clients send the object itself."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct):
    """A call that the assistant made earlier."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] = "function"


class ChosenFunction(msgspec.Struct):
    name: str


class ToolChoice(msgspec.Struct):
    """The choice of one function by its name."""

    type: Literal["function"]
    function: ChosenFunction


class ToolUse(msgspec.Struct, frozen=True):
    """What the model may call in this reply. Without tools, what looks like a call is text."""

    tools: tuple[dict[str, Any], ...] = ()  # as templates get them
    demanded: bool = False  # a reply without a call is an error
    parallel: bool = True  # or the reply ends with its first call

    def check(self, called: list[str]) -> None:
        """Raise ToolNotCalled if the reply lacks a call that the request demands."""
        if not self.demanded:
            return
        offered = [tool["function"]["name"] for tool in self.tools]
        if not any(name in offered for name in called):
            wanted = f"the function {offered[0]!r}" if len(offered) == 1 else "a function"
            raise ToolNotCalled(
                f"tool_choice demands that {wanted} is called, but the model did not call it", param="tool_choice"
            )


def tool_use(
    tools: list[Tool] | None, choice: Literal["none", "auto", "required"] | ToolChoice | None, *, parallel: bool
) -> ToolUse:
    """Definitions and choice, checked against each other. A function that is chosen is the only one that is offered."""
    offered: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(tools or []):
        name = tool.function.name
        if not name or name in offered:
            problem = "is used twice" if name else "is empty"
            raise InvalidRequest(f"tools[{index}].function.name {problem}", param=f"tools[{index}].function.name")
        offered[name] = {"type": "function", "function": _as_shown(tool.function)}
    if isinstance(choice, ToolChoice):
        if choice.function.name not in offered:
            path = "tool_choice.function.name"
            raise InvalidRequest(f"{path} {choice.function.name!r} is none of the tools", param=path)
        return ToolUse((offered[choice.function.name],), demanded=True, parallel=parallel)
    if choice == "required" and not offered:
        raise InvalidRequest("tool_choice 'required' needs tools", param="tool_choice")
    if choice == "none":
        return ToolUse()
    return ToolUse(tuple(offered.values()), demanded=choice == "required", parallel=parallel)


def calls_as_shown(calls: list[ToolCall], path: str) -> list[dict[str, Any]]:
    """Calls of the history as templates get them, arguments as objects; `path` is where they stand in the request."""
    shown = []
    for index, call in enumerate(calls):
        arguments = call.function.arguments
        if isinstance(arguments, str) and arguments.strip():
            at = f"{path}[{index}].function.arguments"
            try:
                arguments = _arguments.decode(arguments)
            except (msgspec.DecodeError, RecursionError) as error:
                raise InvalidRequest(f"{at} is not a JSON object: {error}", param=at) from error
        function = {"name": call.function.name, "arguments": arguments or {}}
        shown.append({"type": "function", "function": function} | ({"id": call.id} if call.id is not None else {}))
    return shown


def refuse_without_format(use: ToolUse, turns: list[dict[str, Any]]) -> None:
    """For a model whose template shows no calls: it would never learn of them. Raises Unsupported."""
    if use.tools:
        raise Unsupported("tools are not supported by this model: its chat template does not show any", param="tools")
    if any(turn["role"] == "tool" or "tool_calls" in turn for turn in turns):
        raise Unsupported("messages hold tool calls, which this model's chat template does not show", param="messages")


def _as_shown(function: Function) -> dict[str, Any]:
    """In one order, whatever the client's, so that the prompt begins the same."""
    shown: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        shown["description"] = function.description
    if function.parameters is not None:
        shown["parameters"] = function.parameters
    return shown


_arguments = msgspec.json.Decoder(dict[str, Any])

"""Calls as Qwen3-Coder and its successors write them: `<function=NAME>` with a `<parameter=NAME>` block for each value.

The format has no types: strings stand there as they are, everything else as JSON. The tool's JSON schema says which of
the two a value is; where it says nothing, or both would do, what reads as JSON is JSON. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.parsing.tools.blocks import Call, Unended

_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"

# One line break on each side belongs to the frame. The end must be followed by what may follow, so that a value can
# quote the format.
_BLOCK = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*(?=<parameter=|\Z)", re.DOTALL)

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "object": dict,
    "array": list,
    "null": type(None),
}
_EVERY_TYPE = frozenset(_TYPES)


def read(inside: str, schemas: Mapping[str, Mapping[str, Any]]) -> Call | None:
    """The call in a block. `schemas`: the parameters' schema of each function that was offered."""
    text = inside.strip()
    if text.rfind(_PARAMETER) > text.rfind(_PARAMETER_END):
        raise Unended
    if not text.startswith(_FUNCTION) or not text.endswith(_FUNCTION_END):
        return None
    name, bracket, rest = text[len(_FUNCTION) : -len(_FUNCTION_END)].partition(">")
    if not bracket or not name.strip() or "\n" in name:
        return None
    schema = schemas.get(name.strip(), {})
    arguments: dict[str, Any] = {}
    at, rest = 0, rest.strip()
    while at < len(rest):
        block = _BLOCK.match(rest, at)
        if block is None:
            return None
        arguments[block[1].strip()] = _value(block[2], _types_of(block[1].strip(), schema))
        at = block.end()
    return Call(name.strip(), json.dumps(arguments, ensure_ascii=False))


def _value(text: str, types: frozenset[str]) -> Any:
    if types == {"string"}:
        return text
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text  # the tool shall say what is wrong with it
    return text if "string" in types and not _fits(value, types - {"string"}) else value


def _fits(value: Any, types: frozenset[str]) -> bool:
    if isinstance(value, bool):
        return "boolean" in types
    return any(isinstance(value, _TYPES[name]) for name in types)


def _types_of(parameter: str, root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a function's schema allows for a parameter, as far as it says so plainly."""
    properties = root.get("properties")
    waiting: list[Any] = [properties.get(parameter) if isinstance(properties, Mapping) else None]
    seen: set[int] = set()  # references may go round in circles
    types: set[str] = set()
    while waiting:
        schema = waiting.pop()
        if id(schema) in seen:
            continue
        seen.add(id(schema))
        if not isinstance(schema, Mapping):
            return _EVERY_TYPE
        named, branches, choices = schema.get("type"), schema.get("anyOf") or schema.get("oneOf"), schema.get("enum")
        if isinstance(named, str):
            types.add(named)
        elif isinstance(named, list):
            types.update(name for name in named if isinstance(name, str))
        elif isinstance(reference := schema.get("$ref"), str):
            waiting.append(_referenced(reference, root))
        elif isinstance(branches, list):
            waiting.extend(branches)
        elif isinstance(choices, list):
            types.update(name for name in _TYPES if any(_fits(choice, frozenset({name})) for choice in choices))
        else:
            return _EVERY_TYPE
    return frozenset(types) & _EVERY_TYPE or _EVERY_TYPE


def _referenced(reference: str, root: Any) -> Any:
    """What a reference inside the schema points to; None if it is not there."""
    for part in reference.removeprefix("#/").split("/"):
        root = root.get(part) if isinstance(root, Mapping) else None
    return root

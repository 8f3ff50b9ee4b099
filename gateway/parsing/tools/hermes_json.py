"""Calls as Hermes and Qwen 2.5 and 3 write them: one JSON object with `name` and `arguments`. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from gateway.parsing.tools.blocks import Call, Unended


def read(inside: str, _: Mapping[str, Mapping[str, Any]]) -> Call | None:
    """The call in a block; the format has types of its own, so no schema is needed."""
    try:
        call = _decoder.decode(inside.strip())
        if not isinstance(call, dict):
            return None
        name, arguments = call.get("name"), call.get("arguments", {})
        if isinstance(arguments, str):
            arguments = _decoder.decode(arguments)
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return None
        written = json.dumps(arguments, ensure_ascii=False)
        (name + written).encode()  # half a surrogate pair is no text
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string") and error.doc == inside.strip():
            raise Unended from None
        return None
    except (ValueError, RecursionError):
        return None
    return Call(name, written)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(strict=False, parse_constant=_refuse)  # not strict: models break lines inside strings

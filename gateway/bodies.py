"""The JSON body of a request: decoded into a typed struct, or refused with the path of what is wrong. Pure."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from gateway.errors import InvalidRequest

Body = TypeVar("Body")


def decode_body(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    """The body as the decoder's type; raises InvalidRequest whose text begins with the field."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `")
        name = path[:-1].removeprefix("$").removeprefix(".")
        raise InvalidRequest(f"{name or 'the body'}: {text[0].lower()}{text[1:]}", param=name or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error

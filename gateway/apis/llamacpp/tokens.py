"""POST /tokenize and /detokenize: bodies and answers. Pure; large texts take a while, so call it on a worker thread."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.apis.llamacpp.request import check_id, encode_parts, prompt_parts
from gateway.bodies import decode_body
from gateway.text.tokenizer import Tokenizer

Json = dict[str, Any]


class TokenizeBody(msgspec.Struct):
    """A text, or a list of texts and ids."""

    content: str | list[Any] = ""
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(msgspec.Struct):
    tokens: list[int] = []


def parse_tokenize(body: bytes) -> TokenizeBody:
    """Decode a body; raises InvalidRequest whose text names the field."""
    return decode_body(_tokenize, body)


def parse_detokenize(body: bytes) -> list[int]:
    """Decode a body; raises InvalidRequest whose text names the field."""
    return decode_body(_detokenize, body).tokens


def tokenized(wanted: TokenizeBody, tokenizer: Tokenizer) -> Json:
    """The ids; with pieces, each with its text, or its bytes where they are not UTF-8 on their own."""
    ids = encode_parts(
        prompt_parts(wanted.content, "content"),
        tokenizer,
        path="content",
        add_special=wanted.add_special,
        parse_special=wanted.parse_special,
    )
    if not wanted.with_pieces:
        return {"tokens": ids}
    return {"tokens": [{"id": token, "piece": _piece(tokenizer.vocabulary.piece_bytes(token))} for token in ids]}


def detokenized(ids: list[int], tokenizer: Tokenizer) -> Json:
    """The text."""
    for index, token in enumerate(ids):
        check_id(token, len(tokenizer.vocabulary.tokens), path=f"tokens[{index}]")
    return {"content": tokenizer.decode(ids)}


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


_tokenize = msgspec.json.Decoder(TokenizeBody)
_detokenize = msgspec.json.Decoder(DetokenizeBody)

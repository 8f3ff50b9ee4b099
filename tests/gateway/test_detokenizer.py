"""Bytes to text, token by token: characters are whole, invalid bytes are replaced as Unicode recommends."""

import pytest

from gateway.text.detokenizer import Detokenizer
from gateway.text.tokenizer import Tokenizer
from gateway.text.vocabulary import Vocabulary

REPLACEMENT = "\ufffd"


def decode(tokenizer: Tokenizer, data: bytes) -> list[str]:
    """The pieces that single-byte tokens give (ids 0..255 are bytes in the test vocabulary)."""
    detokenizer = Detokenizer(tokenizer.vocabulary)
    return [*map(detokenizer.feed, data), detokenizer.finish()]


@pytest.mark.parametrize("text", ["plain", "é", "日本", "👩‍👩‍👧", "e\u0301", "a👍🏽b", "\u2028", "\x00\x7f"])
def test_characters_come_whole(tokenizer: Tokenizer, text: str) -> None:
    pieces = decode(tokenizer, text.encode())
    assert "".join(pieces) == text
    assert REPLACEMENT not in "".join(pieces)
    assert all(piece == "" or len(piece) == 1 for piece in pieces)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xed\xa0\x80", REPLACEMENT * 3),
        (b"\xf0\x80\x80A", REPLACEMENT * 3 + "A"),
        (b"\xe2\x80A", REPLACEMENT + "A"),
        (b"\x80", REPLACEMENT),
        (b"ok\xf0\x9f\x98", "ok" + REPLACEMENT),
        (b"\xff\xe6\x97\xa5", REPLACEMENT + "日"),
    ],
)
def test_invalid_bytes(tokenizer: Tokenizer, data: bytes, text: str) -> None:
    assert "".join(decode(tokenizer, data)) == text
    assert data.decode("utf-8", "replace") == text


def test_control_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.vocabulary
    detokenizer = Detokenizer(vocabulary, visible=[vocabulary.ids["<|im_end|>"]])
    assert detokenizer.feed(vocabulary.ids["<|im_start|>"]) == ""
    assert detokenizer.feed(vocabulary.ids["<|im_end|>"]) == "<|im_end|>"
    assert detokenizer.feed(vocabulary.ids["<think>"]) == "<think>"  # user-defined: always seen
    assert detokenizer.feed(10**6) == ""


def test_byte_tokens_and_blanks_of_a_scored_vocabulary() -> None:
    vocabulary = Vocabulary(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "<0xE2>", "<0x82>", "<0xAC>", "▁a"],
            "tokenizer.ggml.token_type": [2, 3, 3, 6, 6, 6, 1],
        }
    )
    detokenizer = Detokenizer(vocabulary)
    assert [detokenizer.feed(token) for token in (6, 3, 4, 5, 2)] == [" a", "", "", "€", ""]

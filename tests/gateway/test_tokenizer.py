"""Text to ids: round trips, special tokens, the scored merge, and files that cannot be used."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.text.detokenizer import Detokenizer
from gateway.text.pretokenize import ADDS_BOS, PATTERNS, WHOLE_WORD_FIRST
from gateway.text.spm import ScoreMerger
from gateway.text.tokenizer import Tokenizer
from gateway.text.vocabulary import VocabularyError
from tests.gateway.model_file import vocabulary

TINY = Tokenizer.from_metadata(vocabulary(thinking=True))
TEXTS = [
    "",
    " ",
    "\n\n\n  x",
    "Hello, world's 12345 end",
    "tabs\tand\r\nlines\r\n\r\n",
    "日本語 and العربية, ñandú 👩‍👩‍👧",
    "the river runs over the stones",
    "\u00a0\u2003\u3000.\ufeff",
]


def decoded(tokenizer: Tokenizer, ids: list[int]) -> str:
    detokenizer = Detokenizer(tokenizer.vocabulary)
    return "".join(map(detokenizer.feed, ids)) + detokenizer.finish()


@pytest.mark.parametrize("rule", sorted(PATTERNS))
@pytest.mark.parametrize("text", TEXTS)
def test_every_rule_keeps_every_character(rule: str, text: str) -> None:
    tokenizer = Tokenizer.from_metadata({**vocabulary(), "tokenizer.ggml.pre": rule})
    assert decoded(tokenizer, tokenizer.encode(text)) == text


@given(st.text(max_size=40))
@settings(max_examples=200)
def test_any_text_survives(text: str) -> None:
    assert decoded(TINY, TINY.encode(text)) == text


def test_merges_are_applied_by_rank() -> None:
    ids = TINY.encode("the the")
    assert [TINY.vocabulary.tokens[i] for i in ids] == ["the", "Ġthe"]


def test_control_tokens_only_where_they_are_parsed() -> None:
    end = TINY.vocabulary.ids["<|im_end|>"]
    assert end in TINY.encode("a<|im_end|>b", parse_special=True)
    plain = TINY.encode("a<|im_end|>b")
    assert end not in plain
    assert decoded(TINY, plain) == "a<|im_end|>b"


def test_user_defined_tokens_are_always_read() -> None:
    assert TINY.vocabulary.ids["<think>"] in TINY.encode("a<think>b")


def test_longer_special_tokens_are_cut_out_first() -> None:
    metadata = vocabulary()
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "<a>", "<a><b>"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 4, 4]
    tokenizer = Tokenizer.from_metadata(metadata)
    ids = tokenizer.vocabulary.ids
    assert tokenizer.encode("<a><b><a>") == [ids["<a><b>"], ids["<a>"]]


def test_the_break_mark_is_dropped() -> None:
    assert TINY.encode("<\U0010fffd|im_end|>", parse_special=True, break_mark="\U0010fffd") == TINY.encode("<|im_end|>")


def test_bos_is_put_in_front_once() -> None:
    tokenizer = Tokenizer.from_metadata({**vocabulary(), "tokenizer.ggml.add_bos_token": True})
    bos = tokenizer.vocabulary.bos_id
    assert tokenizer.encode("a", add_special=True)[0] == bos
    assert tokenizer.encode("<|endoftext|>a", add_special=True, parse_special=True).count(bos) == 1
    assert TINY.encode("a", add_special=True) == TINY.encode("a")


def spm(pieces: dict[str, float], *, space_prefix: bool = False) -> tuple[list[str], ScoreMerger]:
    tokens = [*pieces, *(f"<0x{byte:02X}>" for byte in range(256))]
    ids = {token: index for index, token in enumerate(tokens)}
    return tokens, ScoreMerger(ids, [*pieces.values(), *([0.0] * 256)], space_prefix=space_prefix)


def test_scored_merges_take_the_best_pair_first_then_the_leftmost() -> None:
    tokens, merger = spm({"a": 0, "b": 0, "c": 0, "ab": -2, "bc": -1, "aa": -3})
    assert [tokens[i] for i in merger.encode("abc", after_special=False)] == ["a", "bc"]
    assert [tokens[i] for i in merger.encode("aaa", after_special=False)] == ["aa", "a"]


def test_scored_vocabulary_falls_back_to_bytes_and_prefixes_a_blank() -> None:
    tokens, merger = spm({"▁": 0, "a": 0, "▁a": -1}, space_prefix=True)
    assert [tokens[i] for i in merger.encode("aé", after_special=True)] == ["▁a", "<0xC3>", "<0xA9>"]
    assert [tokens[i] for i in merger.encode("a", after_special=False)] == ["a"]
    assert merger.encode("", after_special=True) == []


def test_raw_character_vocabulary() -> None:
    pieces = ["▁", "a", "b", "ab", "▁ab", "\n", "\n\n", *(f"<0x{byte:02X}>" for byte in range(256)), "<bos>"]
    tokenizer = Tokenizer.from_metadata(
        {
            "tokenizer.ggml.model": "gemma4",
            "tokenizer.ggml.tokens": pieces,
            "tokenizer.ggml.token_type": [1] * 7 + [6] * 256 + [3],
            "tokenizer.ggml.merges": ["a b", "▁ ab", "\n \n"],
            "tokenizer.ggml.bos_token_id": len(pieces) - 1,
            "tokenizer.ggml.add_bos_token": False,  # wrong in some files: these models always want it
        }
    )
    ids = tokenizer.encode(" ab\n\né", add_special=True)
    assert [pieces[i] for i in ids] == ["<bos>", "▁ab", "\n\n", "<0xC3>", "<0xA9>"]
    assert decoded(tokenizer, ids) == " ab\n\né"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"tokenizer.ggml.model": "bert"}, "bert"),
        ({"tokenizer.ggml.pre": "qwen-2"}, "qwen-2"),
        ({"tokenizer.ggml.tokens": None}, "tokens"),
        ({"tokenizer.ggml.merges": None}, "merges"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "token_type"),
        ({"tokenizer.ggml.model": "llama"}, "scores"),
    ],
)
def test_unusable_vocabularies_are_named(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(VocabularyError, match=word):
        Tokenizer.from_metadata({**vocabulary(), **changes})


def test_rules_that_take_whole_words_are_known_rules() -> None:
    assert set(PATTERNS) >= WHOLE_WORD_FIRST
    assert set(PATTERNS) >= ADDS_BOS

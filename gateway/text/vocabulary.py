"""What a GGUF says of its tokens: texts, kinds, special ids, the bytes that each stands for.

Pure data, read once from the file's metadata. How text becomes ids is the tokenizer's business; which ids end a turn is
the engine's (its INFO line says).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from gateway.text.bpe import byte_alphabet
from gateway.text.pretokenize import ADDS_BOS
from gateway.text.spm import SPACE

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# The harmony format writes these between channels; clients need to see them as text.
_HARMONY_MARKS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")

METADATA_ARRAYS = (
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.merges",
)


class VocabularyError(ValueError):
    """The file's vocabulary cannot be used; the text is one clear sentence."""


class Vocabulary:
    """The tokens of one model."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.model = str(metadata.get("tokenizer.ggml.model", "no_vocab"))
        if self.model not in ("gpt2", "llama", "gemma4"):
            raise VocabularyError(f"tokenizer.ggml.model {self.model!r} is not supported (gpt2, llama and gemma4 are)")
        self.pre = str(metadata.get("tokenizer.ggml.pre", "default"))
        self.tokens: Sequence[str] = _texts(metadata.get("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens")
        kinds = metadata.get("tokenizer.ggml.token_type")
        self.kinds: Sequence[int] = [int(kind) for kind in kinds] if kinds is not None else [NORMAL] * len(self.tokens)
        if len(self.kinds) != len(self.tokens):
            raise VocabularyError(f"tokenizer.ggml.token_type has {len(self.kinds)} entries for {len(self.tokens)} tokens")
        self.ids: dict[str, int] = {token: index for index, token in enumerate(self.tokens)}
        self._metadata = {
            key.removeprefix("tokenizer.ggml."): value
            for key, value in metadata.items()
            if key.startswith("tokenizer.ggml.") and key not in METADATA_ARRAYS
        }
        if self._is_harmony:
            for text in _HARMONY_MARKS:
                if text in self.ids:
                    self.kinds[self.ids[text]] = USER_DEFINED

    @property
    def _is_harmony(self) -> bool:
        return "<|return|>" in self.ids and "<|call|>" in self.ids

    def named_id(self, key: str) -> int | None:
        """The id that the file gives under `tokenizer.ggml.KEY`, if it names a token."""
        value = self._metadata.get(key)
        return value if isinstance(value, int) and 0 <= value < len(self.tokens) else None

    @cached_property
    def bos_id(self) -> int | None:
        found = self.named_id("bos_token_id")
        if found is None and "bos_token_id" not in self._metadata:
            default = {"llama": 1, "gpt2": 11}.get(self.model)
            return default if default is not None and default < len(self.tokens) else None
        return found

    @cached_property
    def eos_id(self) -> int | None:
        found = self.named_id("eos_token_id")
        if found is None and "eos_token_id" not in self._metadata:
            default = {"llama": 2, "gpt2": 11}.get(self.model)
            return default if default is not None and default < len(self.tokens) else None
        return found

    @cached_property
    def adds_bos(self) -> bool:
        if self.model == "gemma4":  # always; some files say otherwise and are wrong
            return self.bos_id is not None
        default = self.model == "llama" or self.pre in ADDS_BOS
        return bool(self._metadata.get("add_bos_token", default)) and self.bos_id is not None

    @cached_property
    def adds_space_prefix(self) -> bool:
        return bool(self._metadata.get("add_space_prefix", True))

    @cached_property
    def specials(self) -> list[int]:
        """Tokens that are found in text as a whole, longest first: the order in which they are cut out."""
        found = [i for i, kind in enumerate(self.kinds) if kind in (CONTROL, UNKNOWN, USER_DEFINED) and self.tokens[i]]
        return sorted(found, key=lambda i: -len(self.tokens[i].encode()))

    @cached_property
    def _byte_of(self) -> dict[str, int]:
        return byte_alphabet()

    def text(self, token: int | None) -> str:
        """The token's own text, "" for none: what a template writes for `bos_token`."""
        return "" if token is None else self.tokens[token]

    def is_control(self, token: int) -> bool:
        return self.kinds[token] in (CONTROL, UNKNOWN)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that the token adds to a text; none for control tokens and for ids outside the vocabulary."""
        if not 0 <= token < len(self.tokens):
            return b""
        text, kind = self.tokens[token], self.kinds[token]
        if kind in (CONTROL, UNKNOWN, UNUSED):
            return b""
        if kind == USER_DEFINED:
            return (text if self.model == "gpt2" else text.replace(SPACE, " ")).encode()
        if kind == BYTE and len(text) == 6 and text.startswith("<0x"):
            return bytes((int(text[3:5], 16),))
        if self.model != "gpt2":
            return text.replace(SPACE, " ").encode()
        try:
            return bytes([self._byte_of[character] for character in text])
        except KeyError:  # a normal token that is not spelled in the byte alphabet stands for its own text
            return text.encode()

    def piece_bytes(self, token: int) -> bytes:
        """The same, but a control token is spelled out: what a token looks like on its own."""
        known = 0 <= token < len(self.tokens)
        return self.tokens[token].encode() if known and self.is_control(token) else self.token_bytes(token)


def _texts(value: Any, key: str) -> Sequence[str]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise VocabularyError(f"the file has no {key}")
    return [token if isinstance(token, str) else bytes(token).decode("utf-8", "replace") for token in value]

"""Byte-pair encoding from a GGUF's tokens and merges, through the `tokenizers` library.

Two alphabets: GPT-2's printable bytes (`gpt2`) and raw characters with byte tokens as the last resort (`gemma4`). Knows
nothing of special tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from gateway.text.pretokenize import GEMMA4_PATTERNS, PATTERNS, WHOLE_WORD_FIRST
from gateway.text.spm import SPACE


def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: the printable character that stands for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    shift = 0
    for byte in range(256):
        if byte not in alphabet.values():
            alphabet[chr(0x100 + shift)] = byte
            shift += 1
    return alphabet


class MergeEncoder:
    """Encodes text with ranked merges."""

    def __init__(self, tokens: Sequence[str], merges: Iterable[str], *, pre: str, raw_characters: bool) -> None:
        vocabulary = {token: index for index, token in enumerate(tokens)}
        self._tokenizer = Tokenizer(
            models.BPE(
                vocab=vocabulary,
                merges=list(_pairs(merges, vocabulary)),
                fuse_unk=False,
                byte_fallback=raw_characters,
                ignore_merges=pre in WHOLE_WORD_FIRST,
            )
        )
        patterns = GEMMA4_PATTERNS if raw_characters else PATTERNS[pre]
        steps: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
        if raw_characters:
            self._tokenizer.normalizer = normalizers.Replace(" ", SPACE)
        else:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Ids of one fragment. What came before it makes no difference here."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _pairs(merges: Iterable[str], vocabulary: dict[str, int]) -> Iterable[tuple[str, str]]:
    """Merges as pairs. A pair whose parts or result are no tokens can never apply, and the library rejects it."""
    for merge in merges:
        blank = merge.find(" ", 1)  # a piece may itself begin with a blank
        left, right = merge[:blank], merge[blank + 1 :]
        if left in vocabulary and right in vocabulary and left + right in vocabulary:
            yield left, right

"""Text to ids: special tokens are cut out first, the rest is merged piece by piece.

Pure and thread-safe after construction. A `break_mark` is a character that the caller put inside texts that must not be
read as special tokens; it never reaches the merges (see gateway.chat.template).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gateway.text.bpe import MergeEncoder
from gateway.text.pretokenize import PATTERNS
from gateway.text.spm import ScoreMerger
from gateway.text.vocabulary import Vocabulary, VocabularyError


class _Encoder(Protocol):
    def encode(self, text: str, *, after_special: bool) -> list[int]: ...


class Tokenizer:
    """Encodes text for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary, encoder: _Encoder) -> None:
        self.vocabulary = vocabulary
        self._encoder = encoder

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Build from a GGUF's metadata, with the arrays of `vocabulary.METADATA_ARRAYS` decoded."""
        vocabulary = Vocabulary(metadata)
        encoder: _Encoder
        if vocabulary.model == "llama":
            scores = metadata.get("tokenizer.ggml.scores")
            if scores is None or len(scores) != len(vocabulary.tokens):
                raise VocabularyError("tokenizer.ggml.scores is missing or shorter than the token list")
            encoder = ScoreMerger(vocabulary.ids, [float(score) for score in scores], space_prefix=vocabulary.adds_space_prefix)
        else:
            raw_characters = vocabulary.model == "gemma4"
            if not raw_characters and vocabulary.pre not in PATTERNS:
                known = ", ".join(sorted(PATTERNS))
                raise VocabularyError(f"tokenizer.ggml.pre {vocabulary.pre!r} is not known (known: {known})")
            merges = metadata.get("tokenizer.ggml.merges")
            if merges is None:
                raise VocabularyError("the file has no tokenizer.ggml.merges")
            encoder = MergeEncoder(vocabulary.tokens, merges, pre=vocabulary.pre, raw_characters=raw_characters)
        return cls(vocabulary, encoder)

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = False, break_mark: str = "") -> list[int]:
        """Ids of a text.

        `parse_special` reads control tokens written out in the text as those tokens. User-defined tokens are always
        read. `add_special` puts the begin-of-text token in front where the model wants one and the text has none.
        """
        ids: list[int] = []
        after_special = True
        for part in self._cut(text, parse_special=parse_special):
            if isinstance(part, int):
                ids.append(part)
                after_special = True
                continue
            plain = part.replace(break_mark, "") if break_mark else part
            if plain:
                ids.extend(self._encoder.encode(plain, after_special=after_special))
                after_special = False
        vocabulary = self.vocabulary
        bos = vocabulary.bos_id
        if add_special and vocabulary.adds_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text that encodes to these ids, control tokens spelled out."""
        vocabulary = self.vocabulary
        prefixed = vocabulary.model == "llama" and vocabulary.adds_space_prefix
        specials = frozenset(vocabulary.specials)
        pieces = []
        after_special = True
        for token in ids:
            piece = vocabulary.piece_bytes(token)
            # The blank that encoding puts in front of a fragment is not part of the text.
            pieces.append(piece.removeprefix(b" ") if prefixed and after_special else piece)
            after_special = token in specials
        return b"".join(pieces).decode("utf-8", "replace")

    def _cut(self, text: str, *, parse_special: bool) -> Sequence[int | str]:
        """The text as special ids and the plain pieces between them. Longer special texts are cut out first."""
        parts: list[int | str] = [text] if text else []
        for token in self.vocabulary.specials:
            if not parse_special and self.vocabulary.is_control(token):
                continue
            marker = self.vocabulary.tokens[token]
            if marker not in text:
                continue
            cut: list[int | str] = []
            for part in parts:
                if isinstance(part, int):
                    cut.append(part)
                    continue
                for index, piece in enumerate(part.split(marker)):
                    if index:
                        cut.append(token)
                    if piece:
                        cut.append(piece)
            parts = cut
        return parts

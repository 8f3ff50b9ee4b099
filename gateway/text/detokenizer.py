"""Token ids to text, one at a time: bytes of an unfinished character are held until it is whole.

Pure. Invalid bytes become U+FFFD as Unicode recommends (one for each maximal part of a sequence), and the text goes on.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection

from gateway.text.vocabulary import Vocabulary


class Detokenizer:
    """Decodes one reply. `visible` names control tokens whose text is wanted all the same (thinking tags)."""

    def __init__(self, vocabulary: Vocabulary, *, visible: Collection[int] = ()) -> None:
        self._vocabulary = vocabulary
        self._visible = frozenset(visible)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def in_character(self) -> bool:
        """Whether bytes of an unfinished character are held."""
        return bool(self._decoder.getstate()[0])

    def feed(self, token: int) -> str:
        """The text that became complete with this token."""
        if token in self._visible:
            return self._decoder.decode(self._vocabulary.tokens[token].encode())
        return self._decoder.decode(self._vocabulary.token_bytes(token))

    def finish(self) -> str:
        """What is left: at most one replacement character for a sequence that never ended."""
        return self._decoder.decode(b"", True)

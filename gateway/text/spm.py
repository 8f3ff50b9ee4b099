"""SentencePiece-style merging (`tokenizer.ggml.model` = `llama`): the adjacent pair with the best score first.

Pure; knows nothing of special tokens. Ties go to the leftmost pair.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

SPACE = "\u2581"  # how a blank is written in these vocabularies


class ScoreMerger:
    """Encodes text with a vocabulary of scored pieces."""

    def __init__(self, ids: Mapping[str, int], scores: Sequence[float], *, space_prefix: bool) -> None:
        self._ids = ids
        self._scores = scores
        self._space_prefix = space_prefix

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Ids of one fragment; `after_special` says that it starts the text or follows a special token."""
        if not text:
            return []
        if self._space_prefix and after_special:
            text = " " + text
        symbols = list(text.replace(" ", SPACE))
        count = len(symbols)
        before = list(range(-1, count - 1))
        after = [*range(1, count), -1]
        queue: list[tuple[float, int, int, str]] = []

        def offer(left: int, right: int) -> None:
            if left < 0 or right < 0:
                return
            joined = symbols[left] + symbols[right]
            token = self._ids.get(joined)
            if token is not None:
                heapq.heappush(queue, (-self._scores[token], left, right, joined))

        for right in range(1, count):
            offer(right - 1, right)
        while queue:
            _, left, right, joined = heapq.heappop(queue)
            # An entry is stale once either side was merged: a merged-away symbol is empty, a grown one differs.
            if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != joined:
                continue
            symbols[left] = joined
            symbols[right] = ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            offer(before[left], left)
            offer(left, after[left])

        ids: list[int] = []
        for symbol in symbols:
            if symbol:
                ids.extend(self._lookup(symbol))
        return ids

    def _lookup(self, symbol: str) -> list[int]:
        token = self._ids.get(symbol)
        if token is not None:
            return [token]
        found = (self._ids.get(f"<0x{byte:02X}>", self._ids.get(chr(byte))) for byte in symbol.encode())
        return [token for token in found if token is not None]

"""Bytes from a pipe to lines, however they are cut, with a bound on a line's length.

Pure. A line over the bound is thrown away up to its end and reported as one `TooLong`, so that one bad line costs one
request and not the reader.
"""

from __future__ import annotations


class TooLong:
    """Stands for a line that was over the bound."""


class LineSplitter:
    """Feed chunks, get whole lines without their ends."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []  # of the unfinished line
        self._held_bytes = 0
        self._discarding = False

    def feed(self, chunk: bytes) -> list[bytes | TooLong]:
        """The lines that this chunk completes."""
        lines: list[bytes | TooLong] = []
        *complete, rest = chunk.split(b"\n")
        for piece in complete:
            self._hold(piece)
            lines.append(TooLong() if self._discarding else b"".join(self._parts).removesuffix(b"\r"))
            self._parts, self._held_bytes, self._discarding = [], 0, False
        self._hold(rest)
        return lines

    def _hold(self, piece: bytes) -> None:
        self._held_bytes += len(piece)
        if self._held_bytes > self._limit_bytes:
            self._discarding = True
            self._parts = []
        elif piece and not self._discarding:
            self._parts.append(piece)

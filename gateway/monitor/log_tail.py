"""The last lines of the engines' logs, numbered, so that a reader can ask for what is new. Lives on the event loop."""

from __future__ import annotations

import time
from collections import deque

import msgspec

_LINES = 400


class LogLine(msgspec.Struct, frozen=True):
    """One line of an engine's stderr."""

    number: int
    unix_s: float
    engine: int  # which start wrote it
    text: str


class LogTail:
    """Lines of all engines of this server, the oldest forgotten."""

    def __init__(self) -> None:
        self._lines: deque[LogLine] = deque(maxlen=_LINES)
        self._count = 0

    def append(self, engine: int, text: str) -> None:
        """Keep a line."""
        self._count += 1
        self._lines.append(LogLine(self._count, round(time.time(), 3), engine, text))

    def since(self, number: int) -> list[LogLine]:
        """The lines after `number` that are still kept; 0 = all of them."""
        return [line for line in self._lines if line.number > number]

    def last_of(self, engine: int) -> str | None:
        """The last line of one engine."""
        return self._lines[-1].text if self._lines and self._lines[-1].engine == engine else None

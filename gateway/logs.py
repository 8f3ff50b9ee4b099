"""The log: one line a message on stderr, and nothing in it of what clients wrote or were told.

Messages of exceptions may quote a request, so a trace has the exceptions' names and the lines of code, no more, unless
`with_text` asks for all of it.
"""

from __future__ import annotations

import logging
import traceback
from types import TracebackType

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class Formatter(logging.Formatter):
    """Lines with a time; traces without their exceptions' messages."""

    def __init__(self, *, with_text: bool) -> None:
        super().__init__("%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S")
        self._with_text = with_text

    def formatException(self, ei: ExcInfo) -> str:
        """The trace as text."""
        if self._with_text or ei[1] is None:
            return super().formatException(ei)
        return "\n".join(_trace(ei[1]))


def configure(*, with_text: bool) -> None:
    """Send everything from INFO on to stderr. A full disk behind it costs lines, not the server."""
    handler = logging.StreamHandler()
    handler.setFormatter(Formatter(with_text=with_text))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _trace(error: BaseException) -> list[str]:
    lines: list[str] = []
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        frames = [line for entry in traceback.format_tb(at.__traceback__) for line in entry.rstrip().split("\n")]
        name = f"{type(at).__module__}.{type(at).__qualname__}"
        lines += ([] if not lines else ["  because of, or after"]) + [name, *frames]
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    return lines

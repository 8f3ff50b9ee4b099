"""Finds tool calls in the text of a reply: what stands between `<tool_call>` and `</tool_call>`, if a reader takes it.

Pure feed/finish machine; the result does not depend on how the text was cut. A call is let out when it is whole, because
only then it is certain to be one: what is malformed or never ends comes back as the text that it was. Blanks next to a
call belong to it. What a call looks like inside, the format's reader knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

OPENING, CLOSING = "<tool_call>", "</tool_call>"


class Call(NamedTuple):
    """One call; `arguments` is a JSON object as text."""

    name: str
    arguments: str


class Unended(Exception):
    """The closing tag stands inside a value: the call goes on."""


Reader = Callable[[str], Call | None]  # a block's inside; None: this is no call; raises Unended


class ToolCallParser:
    """The text of one reply, in which calls are."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._held = ""
        self._searched = 0  # how much of a held block is known not to hold its end
        self._after_call = False  # blanks are dropped

    def feed(self, text: str) -> list[str | Call]:
        """What is now certain, in order; never an empty text."""
        self._held += text
        return [piece for piece in self._advance(ended=False) if piece]

    def finish(self) -> list[str | Call]:
        """The reply has ended: a block that has not is text, and may hold whole ones."""
        return [piece for piece in self._advance(ended=True) if piece]

    def _advance(self, *, ended: bool) -> Iterator[str | Call]:
        while self._held:
            if self._after_call:
                self._held = self._held.lstrip()
            start = len(self._held) - len(self._held.lstrip())
            if self._held.startswith(OPENING, start):
                call = self._block(start + len(OPENING))
                if call is None and not ended:
                    return
                if isinstance(call, Call):
                    self._after_call = True
                    yield call
                    continue
                certain = start + len(OPENING)
            elif ended and OPENING not in self._held:
                certain = len(self._held)
            else:
                certain = self._text_before_block()
            text, self._held = self._held[:certain], self._held[certain:]
            self._searched = 0
            self._after_call = self._after_call and not text
            yield text
            if not ended and not text:
                return

    def _block(self, inside: int) -> Call | bool | None:
        """The call that begins at the head of what is held; False: it is none; None: its end has not come."""
        while True:
            end = self._held.find(CLOSING, max(self._searched, inside))
            if end < 0:
                self._searched = max(len(self._held) - len(CLOSING) + 1, self._searched)
                return None
            try:
                call = self._read(self._held[inside:end])
            except Unended:
                self._searched = end + len(CLOSING)
                continue
            self._searched = 0
            if call is None:
                return False
            self._held = self._held[end + len(CLOSING) :]
            return call

    def _text_before_block(self) -> int:
        """Length of what is surely text: up to a block or its possible beginning, and to the blanks before that."""
        end = self._held.find(OPENING)
        if end < 0:
            end = len(self._held)
            for size in range(min(len(OPENING) - 1, end), 0, -1):
                if self._held.endswith(OPENING[:size]):
                    end -= size
                    break
        return len(self._held[:end].rstrip())

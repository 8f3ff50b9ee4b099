"""A reply that ends where its lines stop being indented: what editors ask for when they complete a block of code.

Pure. The first line is free, since it goes on where the cursor is. Every later line, an empty one too, has to begin with
at least so many blanks; the reply is cut behind the blanks of the first that does not.
"""

from __future__ import annotations

_BLANKS = " \t"


class IndentGuard:
    """Lets text through until a line is indented too little. 0 blanks: everything passes."""

    def __init__(self, blanks: int) -> None:
        self._needed = blanks
        self._counted: int | None = None  # blanks at the beginning of the line so far; None further on in it
        self.hit = False

    def feed(self, text: str) -> str:
        """The part of the text that belongs to the reply. After a hit: nothing."""
        if self.hit:
            return ""
        if self._needed <= 0:
            return text
        for position, character in enumerate(text):
            if self._counted is not None:
                if character in _BLANKS:
                    self._counted += 1
                    continue
                if self._counted < self._needed:
                    self.hit = True
                    return text[:position]
                self._counted = None
            if character == "\n":
                self._counted = 0
        return text

"""Stop strings in a stream: nothing of a stop string is ever let out, and nothing else is lost.

Pure. Each string has its own Knuth-Morris-Pratt state, so a character costs O(strings) whatever their length, and the
result does not depend on how the text was cut into pieces. The stop that is complete first wins; of two that are
complete at the same character, the longer.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_STOPS = 64


class _Needle:
    """One stop string and how much of it the text's end already matches."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._fallback = [0] * len(text)  # longest proper prefix of text[:i+1] that is its suffix too
        length = 0
        for index in range(1, len(text)):
            while length and text[index] != text[length]:
                length = self._fallback[length - 1]
            if text[index] == text[length]:
                length += 1
            self._fallback[index] = length

    def push(self, character: str) -> bool:
        """Take one character; true when the string is complete."""
        while self.matched and character != self.text[self.matched]:
            self.matched = self._fallback[self.matched - 1]
        if character == self.text[self.matched]:
            self.matched += 1
        return self.matched == len(self.text)


class StopFilter:
    """Holds back what may become a stop string. Empty stop strings are dropped."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._needles = [_Needle(text) for text in dict.fromkeys(stops) if text]
        self._held = ""
        self.hit: str | None = None  # the stop string that was found

    def feed(self, text: str) -> str:
        """The text that is now certain to come before any stop. After a hit: always empty."""
        if self.hit is not None:
            return ""
        if not self._needles:
            return text
        pending = self._held + text
        for position, character in enumerate(text, start=len(self._held) + 1):
            complete = [needle.text for needle in self._needles if needle.push(character)]
            if complete:
                self.hit = max(complete, key=len)
                self._held = ""
                return pending[: position - len(self.hit)]
        keep = max(needle.matched for needle in self._needles)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def finish(self) -> str:
        """The reply has ended: what was held back is text after all."""
        held, self._held = self._held, ""
        return held

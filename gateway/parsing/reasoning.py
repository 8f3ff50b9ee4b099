"""Splits a reply into thinking and answer, by the tags that the model family writes around its thinking.

Pure feed/finish machine; the result does not depend on how the text was cut. Thinking is recognised only at the very
start of a reply (or where the prompt already opened it), so tags inside the answer, say in quoted code, stay text.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple


class Channel(Enum):
    """Where a piece of the reply belongs."""

    REASONING = "reasoning"
    CONTENT = "content"


class Piece(NamedTuple):
    channel: Channel
    text: str


class ThinkingTags(NamedTuple):
    opening: str = "<think>"
    closing: str = "</think>"


class _State(Enum):
    START = 0  # nothing but blanks so far, the opening tag may still come
    REASONING_START = 1  # right after the opening tag: line breaks are dropped
    REASONING = 2
    CONTENT_START = 3  # right after the closing tag: line breaks are dropped
    CONTENT = 4


class ReasoningParser:
    """One reply. `tags` None: everything is content. `opened`: the prompt ends inside thinking."""

    def __init__(self, tags: ThinkingTags | None, *, opened: bool) -> None:
        self._tags = tags or ThinkingTags()
        if tags is None:
            self._state = _State.CONTENT
        elif opened:
            self._state = _State.REASONING_START
        else:
            self._state = _State.START
        self._held = ""

    @property
    def in_content(self) -> bool:
        """Whether the answer has begun, or would begin with ordinary text."""
        return self._state in (_State.START, _State.CONTENT_START, _State.CONTENT)

    def feed(self, text: str) -> list[Piece]:
        """What is now certain, in order; never an empty piece."""
        self._held += text
        return [piece for piece in self._advance() if piece.text]

    def finish(self) -> list[Piece]:
        """The reply has ended: what was held back was no tag."""
        held, self._held = self._held, ""
        inside = self._state in (_State.REASONING_START, _State.REASONING)
        channel = Channel.REASONING if inside else Channel.CONTENT
        return [Piece(channel, held)] if held else []

    def _advance(self) -> Iterator[Piece]:
        while self._held:
            match self._state:
                case _State.START:
                    trimmed = self._held.lstrip()
                    if trimmed.startswith(self._tags.opening):
                        self._held = trimmed[len(self._tags.opening) :]
                        self._state = _State.REASONING_START
                    elif self._tags.opening.startswith(trimmed):
                        return  # blanks, or the tag's beginning
                    else:
                        self._state = _State.CONTENT
                case _State.REASONING_START | _State.CONTENT_START:
                    self._held = self._held.lstrip("\r\n")
                    if not self._held:
                        return
                    starting = self._state is _State.REASONING_START
                    self._state = _State.REASONING if starting else _State.CONTENT
                case _State.REASONING:
                    before, tag, after = self._held.partition(self._tags.closing)
                    if not tag:
                        keep = self._undecided(before)
                        self._held = before[len(before) - keep :]
                        yield Piece(Channel.REASONING, before[: len(before) - keep])
                        return
                    self._held = after
                    self._state = _State.CONTENT_START
                    yield Piece(Channel.REASONING, before.rstrip("\r\n"))
                case _State.CONTENT:
                    text, self._held = self._held, ""
                    yield Piece(Channel.CONTENT, text)

    def _undecided(self, text: str) -> int:
        """Length of the end that may turn out to be line breaks before the closing tag, or the tag's beginning."""
        closing = self._tags.closing
        for size in range(min(len(closing) - 1, len(text)), 0, -1):
            if text.endswith(closing[:size]):
                break
        else:
            size = 0
        body = text[: len(text) - size]
        return size + len(body) - len(body.rstrip("\r\n"))

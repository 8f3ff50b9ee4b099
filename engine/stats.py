"""Counters since the process began, for STATS lines.

The main thread writes them, the reader thread reads them at any moment: each is one integer that only grows, so a
reading is at most one window old and never torn.
"""

import time
from collections.abc import Callable

import psutil

from engine.messages import Done, Event, Progress, TokenLine

USAGE_KEYS = ("hits", "lookups", "ram_blobs", "file_blobs", "file_mb")


class EngineStats:
    """What was served so far. `queue_length` gives the number of requests that wait."""

    def __init__(self, queue_length: Callable[[], int]) -> None:
        self.state = "loading"
        self.requests = 0
        self._errors = 0
        self._queue_length = queue_length
        self._started_s = time.monotonic()
        self._finishes = {"stop": 0, "length": 0, "cancel": 0}
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._reused_tokens = 0
        self._prompt_ms = 0.0
        self._decode_ms = 0.0
        self._usage = dict.fromkeys(USAGE_KEYS, 0)
        self._process = psutil.Process()

    def count(self, event: Event) -> None:
        """Take account of an event before it is written: who reads it may ask for STATS at once."""
        match event:
            case Progress():
                self.state = "prompt"
            case TokenLine():
                self.state = "decode"
                self._generated_tokens += 1
            case Done():
                self.state = "idle"
                self._finishes[event.finish] += 1
                self._prompt_tokens += event.prompt_read
                self._reused_tokens += event.reused
                self._prompt_ms += event.prompt_ms
                self._decode_ms += event.decode_ms

    def count_error(self) -> None:
        """A request ends with ERR."""
        self.state = "idle"
        self._errors += 1

    def set_usage(self, usage: dict[str, int]) -> None:
        """The session's own cumulative counters."""
        self._usage = {key: usage.get(key, 0) for key in USAGE_KEYS}

    def fields(self) -> dict[str, int | str]:
        """The fields of a STATS line."""
        return {
            "uptime_s": int(time.monotonic() - self._started_s),
            "state": self.state,
            "queue": self._queue_length(),
            "requests": self.requests,
            **self._finishes,
            "errors": self._errors,
            "prompt_tokens": self._prompt_tokens,
            "generated_tokens": self._generated_tokens,
            "reused_tokens": self._reused_tokens,
            "prompt_ms": round(self._prompt_ms),
            "decode_ms": round(self._decode_ms),
            "rss_mib": self._process.memory_info().rss >> 20,
            **self._usage,
        }

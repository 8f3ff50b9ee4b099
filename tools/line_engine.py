"""An engine without a model: speaks the line protocol, says tokens at a given rate, notes when it said them.

Measurements of the gateway drive it in place of the real engine. It runs as a process of its own:

    python -m tools.line_engine [--rate TOKENS_PER_S] [--stamps FILE]

Tokens are the letters of a small vocabulary's bytes. Without a rate they come as fast as the pipe takes them. STAMPS
gets the monotonic nanosecond of each T line of the last request, 8 bytes each, before its DONE line is said.
"""

import argparse
import itertools
import os
import sys
import threading
import time
from array import array
from pathlib import Path
from queue import SimpleQueue

from engine.protocol import (
    Done,
    Gen,
    Info,
    Ping,
    Pong,
    Progress,
    Quit,
    Ready,
    Stop,
    TokenLine,
    format_event,
    parse_command,
)

CONTEXT = 4_000_000
_TEXT = b"the river runs over the stones and under the bridge "
_WINDOW = 64  # tokens a write, as fast as it goes


class LineEngine:
    """Answers requests in order; STOP ends the running one."""

    def __init__(self, rate_per_s: float, stamps: Path | None) -> None:
        self._rate_per_s = rate_per_s
        self._stamps = stamps
        self._requests: SimpleQueue[Gen | None] = SimpleQueue()
        self._running: str | None = None
        self._stopped = threading.Event()
        self._pipe = threading.Lock()

    def run(self) -> None:
        """Until QUIT or the end of input."""
        threading.Thread(target=self._read, daemon=True).start()
        self._say(format_event(Info({"context": CONTEXT, "eos": "319", "prefill": 512, "backend": "none"})))
        self._say(format_event(Ready(CONTEXT, ("stop",))))
        while (gen := self._requests.get()) is not None:
            self._answer(gen)

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            match parse_command(line):
                case Gen() as gen:
                    self._requests.put(gen)
                case Stop() as stop if stop.id in (None, self._running):
                    self._stopped.set()
                case Ping() as ping:
                    self._say(format_event(Pong(ping.word)))
                case Quit():
                    break
        self._requests.put(None)

    def _answer(self, gen: Gen) -> None:
        self._stopped.clear()
        self._running = gen.id
        prompt = len(gen.tokens)
        self._say(format_event(Progress(prompt, prompt, 1, 1000.0)))
        stamps, began_s = array("q"), time.perf_counter()
        paced = self._rate_per_s > 0
        for first in itertools.count(0, 1 if paced else _WINDOW):
            count = min(1 if paced else _WINDOW, gen.max_new - first)
            if count <= 0 or self._stopped.is_set():
                break
            if paced:
                time.sleep(max(began_s + first / self._rate_per_s - time.perf_counter(), 0))
            tokens = (_TEXT[at % len(_TEXT)] for at in range(first, first + count))
            lines = "\n".join(format_event(TokenLine(token)) for token in tokens)
            stamps.extend([time.monotonic_ns()] * count)
            self._say(lines)
        if self._stamps is not None:
            self._stamps.write_bytes(stamps.tobytes())
        finish = "cancel" if self._stopped.is_set() else "length"
        decode_ms = (time.perf_counter() - began_s) * 1000
        self._say(format_event(Done(
            generated=len(stamps), prompt=prompt, prompt_ms=1.0, decode_ms=round(decode_ms, 1), finish=finish,
            prompt_read=prompt, id=gen.id)))  # fmt: skip

    def _say(self, lines: str) -> None:
        data = lines.encode() + b"\n"
        with self._pipe:
            while data:
                data = data[os.write(1, data) :]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--stamps", type=Path)
    known, _ = parser.parse_known_args()  # the gateway adds flags of the real engine
    LineEngine(known.rate, known.stamps).run()


if __name__ == "__main__":
    main()

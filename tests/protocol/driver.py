"""Drives an engine process over its pipes, as the gateway would: lines in, events out, nothing parsed twice."""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.protocol import Done, Err, Event, Ready, TokenLine, parse_event

ROOT = Path(__file__).parents[2]
MOCK_ENGINE = [sys.executable, "-m", "tests.protocol.mock_engine"]
TIMEOUT_S = 20.0


class EngineProcess:
    """One engine; `lines` holds everything it printed so far."""

    def __init__(self, command: list[str], *, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )
        self.lines: list[str] = []
        self.stderr = ""
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._read, self._drain)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            self._queue.put(raw.decode())
        self._queue.put(None)

    def _drain(self) -> None:
        assert self.process.stderr is not None
        self.stderr = self.process.stderr.read().decode(errors="replace")

    def send(self, *lines: str | bytes) -> None:
        assert self.process.stdin is not None
        for line in lines:
            self.process.stdin.write((line.encode() if isinstance(line, str) else line) + b"\n")
        self.process.stdin.flush()

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def next_event(self) -> Event | None:
        """The next event, or None at the end of the output."""
        line = self._queue.get(timeout=TIMEOUT_S)
        if line is None:
            return None
        self.lines.append(line)
        return parse_event(line)

    def until(self, wanted: Callable[[Event], bool]) -> list[Event]:
        """Events up to and with the first one that is wanted."""
        events: list[Event] = []
        while (event := self.next_event()) is not None:
            events.append(event)
            if wanted(event):
                return events
        raise AssertionError(f"the output ended after {events}; stderr:\n{self._finished_stderr()}")

    def until_type(self, *types: type) -> list[Event]:
        return self.until(lambda event: isinstance(event, types))

    def answer(self) -> tuple[list[int], Done | Err]:
        """The tokens and the last line of the next request."""
        events = self.until_type(Done, Err)
        end = events[-1]
        assert isinstance(end, Done | Err)
        return [event.token for event in events if isinstance(event, TokenLine)], end

    def finish(self) -> tuple[list[Event], int]:
        """What still comes until the process ends by itself, and its exit code."""
        events: list[Event] = []
        while (event := self.next_event()) is not None:
            events.append(event)
        code = self.process.wait(TIMEOUT_S)
        self._finished_stderr()
        return events, code

    def _finished_stderr(self) -> str:
        self._threads[1].join(TIMEOUT_S)
        return self.stderr

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None and not pipe.closed:
                with suppress(BrokenPipeError):
                    pipe.close()


@contextmanager
def mock_engine(*flags: str, ready: bool = True, **environment: str) -> Iterator[EngineProcess]:
    """The daemon on a mock session; its READY is read already unless `ready` is false."""
    engine = EngineProcess([*MOCK_ENGINE, *flags], environment=environment)
    try:
        if ready:
            engine.until_type(Ready)
        yield engine
    finally:
        engine.kill()

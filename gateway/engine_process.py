"""One engine process: started, read line by line, asked to leave, killed.

Everything an instance says lands in its own queue, so a dead engine's late lines can never reach its successor. Runs on
the event loop; what to do when the process ends is the supervisor's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from engine.protocol import (
    MAX_LINE_BYTES,
    BadEvent,
    Command,
    Event,
    Info,
    Ping,
    Pong,
    Quit,
    Ready,
    Unknown,
    format_command,
    parse_event,
)
from gateway.lines import LineSplitter, TooLong
from gateway.monitor.log_tail import LogTail

log = logging.getLogger("gateway.engine")

_LEASH = Path(__file__).with_name("leash.py")
_CHUNK_BYTES = 1 << 16
_LOG_LINE_CHARS = 2000


class Garbled:
    """A line that is damaged or over the bound, in its place among the events."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Ended:
    """The last thing in every queue: the process has closed its output."""


class Interrupted:
    """Put among the events by us: the run that reads it ends with this reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


EngineItem = Event | Garbled | Interrupted | Ended


class EngineProcess:
    """A running engine. `number` tells one instance from the next in logs."""

    def __init__(self, process: asyncio.subprocess.Process, number: int, log_tail: LogTail) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise ValueError("an engine is driven through three pipes")
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self.number = number
        self._log_tail = log_tail
        self.items: asyncio.Queue[EngineItem] = asyncio.Queue()
        self.info: dict[str, int | str] = {}
        self.stop_ids: frozenset[int] = frozenset()
        self.max_context = 0
        self.death_note: str | None = None  # why we killed it, if we did
        self.last_heard_s = time.monotonic()
        self.ended = asyncio.Event()  # output closed and exit status known
        self._readers = [asyncio.create_task(self._read_output()), asyncio.create_task(self._read_log())]
        self._watcher = asyncio.create_task(self._watch())

    @classmethod
    async def start(cls, command: Sequence[str], number: int, log_tail: LogTail) -> EngineProcess:
        """Start the program in a process group of its own, so that a signal to the gateway's group spares it."""
        program = shutil.which(command[0])
        if program is None:
            raise FileNotFoundError(f"{command[0]} is no program")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_LEASH), str(os.getpid())),
            *(program, *command[1:]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        log.info("engine %d started, process %d", number, process.pid)
        return cls(process, number, log_tail)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    @property
    def alive(self) -> bool:
        """Whether it can still answer: neither ended nor condemned."""
        return not self.ended.is_set() and self.death_note is None

    async def send(self, command: Command) -> None:
        """Write one line; waits while the pipe is full. Raises ConnectionError when the engine is gone."""
        if self._stdin.is_closing():
            raise ConnectionResetError("the engine's input is closed")
        self._stdin.write(format_command(command).encode() + b"\n")
        await self._stdin.drain()

    async def ping(self) -> None:
        """Ask for a PONG; `last_heard_s` moves when it comes, as with every line."""
        with contextlib.suppress(ConnectionError):
            await self.send(Ping(str(self.number)))

    def kill(self, note: str) -> None:
        """End it at once, with everything it started; `note` becomes the reason that clients read."""
        if self.death_note is None:
            self.death_note = note
        log.error("engine %d is killed: %s", self.number, note)
        self._signal(signal.SIGKILL)

    async def shutdown(self, note: str, *, quit_s: float, terminate_s: float) -> None:
        """QUIT, then TERM, then KILL; returns when it is gone. `note` is what clients read about it."""
        self.death_note = self.death_note or note
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(quit_s):
                await self.send(Quit())
                self._stdin.close()
        if await self._gone_within(quit_s):
            return
        self._signal(signal.SIGTERM)
        if await self._gone_within(terminate_s):
            return
        self.kill("it did not leave when asked to")
        await self.ended.wait()

    def obituary(self) -> str:
        """Why it ended, in one line for clients and logs."""
        if self.death_note is not None:
            return self.death_note
        code = self._process.returncode
        text = f"the engine stopped unexpectedly (exit code {code})"
        if code == -signal.SIGKILL:
            return text + ": something killed it, perhaps the system ran out of memory"
        last_line = self._log_tail.last_of(self.number)
        return text if last_line is None else f"{text}: {last_line}"

    async def _gone_within(self, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), timeout_s)
        return self.ended.is_set()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    async def _watch(self) -> None:
        """Announce the end once the output is read to its end and the exit status is known."""
        code = await self._process.wait()
        # A grandchild may hold the pipes open: do not wait for their end for ever.
        _, unfinished = await asyncio.wait(self._readers, timeout=1.0)
        for task in unfinished:
            task.cancel()
        self.ended.set()
        self.items.put_nowait(Ended())
        log.info("engine %d ended, exit code %d", self.number, code)

    async def _read_output(self) -> None:
        splitter = LineSplitter(MAX_LINE_BYTES)
        while chunk := await self._stdout.read(_CHUNK_BYTES):
            self.last_heard_s = time.monotonic()
            for line in splitter.feed(chunk):
                self._take(line)

    def _take(self, line: bytes | TooLong) -> None:
        if isinstance(line, TooLong):
            self.items.put_nowait(Garbled(f"the engine wrote a line of more than {MAX_LINE_BYTES} bytes"))
            return
        try:
            event = parse_event(line)
        except BadEvent as error:
            self.items.put_nowait(Garbled(f"the engine wrote a damaged line: {error}"))
            return
        match event:
            case Pong():
                pass
            case Unknown():
                log.warning("engine %d: ignored a line of %d characters with an unknown verb", self.number, len(event.line))
            case Info():
                self.info.update(event.fields)
                if event.stop_ids:
                    self.stop_ids = frozenset(event.stop_ids)
            case Ready():
                self.max_context = event.max_context
                self.items.put_nowait(event)
            case _:
                self.items.put_nowait(event)

    async def _read_log(self) -> None:
        """Keep the engine's stderr flowing: its last lines explain a death, all of them go to our own log."""
        splitter = LineSplitter(MAX_LINE_BYTES)
        while chunk := await self._stderr.read(_CHUNK_BYTES):
            for line in splitter.feed(chunk):
                if isinstance(line, bytes) and line.strip():
                    text = line.decode("utf-8", "replace")[:_LOG_LINE_CHARS]
                    self._log_tail.append(self.number, text)
                    log.info("engine %d: %s", self.number, text)

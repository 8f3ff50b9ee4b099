"""The engine's two pipes: fd 1 for protocol lines alone, a reader thread on fd 0, and the queue between them.

Owns the file descriptors and the order of requests. The reader thread answers PING and STATS and marks requests as
cancelled; everything else waits in the inbox for the main thread, which parses it in its turn (a long GEN line must not
hold up a window that is being computed). It must not know the model.
"""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from engine.messages import Event, Ping, Pong, Quit, Stats, StatsRequest, Stop
from engine.protocol import MAX_LINE_BYTES, BadCommand, find_request_id, format_event, parse_command

READ_BYTES = 1 << 20
KEPT_BYTES = 4096  # of an over-long line, to find its id in


class ClientGone(Exception):
    """Nobody holds the other end of stdout any more."""


def take_stdout(log_path: Path | None = None) -> int:
    """Keep fd 1 for the protocol: returns a private copy, and from now on fd 1 is stderr (or the log file) to everyone.

    Call it before the first heavy import; a library that prints, also from C, then cannot damage the protocol.
    """
    if log_path is not None:
        log_fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log_fd, 2)
        os.close(log_fd)
    protocol_fd = os.dup(1)  # not inheritable: a child process must not keep the pipe open
    os.dup2(2, 1)
    os.set_blocking(protocol_fd, True)  # a terminal may come from a program that left it non-blocking
    return protocol_fd


class LineWriter:
    """Writes whole events to one file descriptor, from any thread."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._lock = threading.Lock()

    def write(self, events: Iterable[Event]) -> None:
        """One system call for all of them (a window's T lines are seen together); raises ClientGone."""
        view = memoryview("".join(format_event(event) + "\n" for event in events).encode())
        with self._lock:
            try:
                while view:
                    view = view[os.write(self.fd, view) :]
            except (BrokenPipeError, ConnectionResetError) as error:
                raise ClientGone from error


class Ticket:
    """One line that waits for its answer: a GEN, or a line that could not be read."""

    def __init__(self, line: bytes, *, error: BadCommand | None = None) -> None:
        self.line = line
        self.error = error  # what is wrong with a line that is not even a GEN
        self.id = find_request_id(line) if error is None else error.request_id
        self.cancelled = False  # set by the reader thread, polled by the main thread
        self.keep: int | None = None  # generated tokens the client saw, from STOP

    @property
    def is_request(self) -> bool:
        """Whether there is something that a STOP could cancel."""
        return self.error is None


class Inbox:
    """The accepted lines in order. The reader thread puts, the main thread takes; STOP is applied under its lock."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._running: Ticket | None = None
        self._closed = False

    def put(self, ticket: Ticket) -> None:
        """Accept a line; after `close` it is dropped."""
        with self._condition:
            if not self._closed:
                self._waiting.append(ticket)
                self._condition.notify()

    def close(self) -> None:
        """Accept nothing more: QUIT or the end of input."""
        with self._condition:
            self._closed = True
            self._condition.notify()

    def take(self) -> Ticket | None:
        """The next ticket, which is the running one until `finish`; None when all were taken and it is closed."""
        with self._condition:
            self._condition.wait_for(lambda: self._waiting or self._closed)
            self._running = self._waiting.popleft() if self._waiting else None
            return self._running

    def finish(self) -> None:
        """The running ticket's end is decided. Call it before its last line is written: who reads that line may send
        the next request with a STOP behind it, which must not be spent on the old one."""
        with self._condition:
            self._running = None

    def stop(self, command: Stop) -> None:
        """Cancel the oldest unfinished request, of the command's id if it has one."""
        with self._condition:
            unfinished = [*self._waiting] if self._running is None else [self._running, *self._waiting]
            for ticket in unfinished:
                if ticket.is_request and command.id in (None, ticket.id):
                    ticket.cancelled = True
                    ticket.keep = command.keep if ticket.keep is None else ticket.keep
                    return

    @property
    def waiting(self) -> int:
        """How many lines wait behind the running one."""
        return len(self._waiting)


def read_lines(fd: int) -> Iterator[bytes | BadCommand]:
    """The lines of `fd` without their newlines until its end; an over-long one is an error, and the stream goes on."""
    buffer = bytearray()
    scanned = 0  # no newline before this place of the buffer
    dropped = 0  # bytes of an over-long line that were thrown away
    while True:
        try:
            piece = os.read(fd, READ_BYTES)
        except OSError:
            piece = b""  # the descriptor is unusable: the same as its end
        buffer += piece
        start = 0
        while (end := buffer.find(b"\n", scanned)) >= 0 or (not piece and start < len(buffer)):
            end = end if end >= 0 else len(buffer)
            line = bytes(buffer[start:end])
            start = scanned = min(end + 1, len(buffer))
            yield _too_long(line, dropped + len(line)) if dropped + len(line) > MAX_LINE_BYTES + 1 else line
            dropped = 0
        del buffer[:start]
        if not piece:
            return
        if len(buffer) > MAX_LINE_BYTES + 1:  # one more for a carriage return
            dropped += len(buffer) - KEPT_BYTES
            del buffer[KEPT_BYTES:]
        scanned = len(buffer)


def _too_long(line: bytes, n_bytes: int) -> BadCommand:
    message = f"a line has at most {MAX_LINE_BYTES} bytes, this one has {n_bytes}"
    return BadCommand(message, request_id=find_request_id(line[:KEPT_BYTES]))


class Reader(threading.Thread):
    """The thread on stdin. `stats` gives the fields of a STATS line and may be called at any moment."""

    def __init__(self, fd: int, *, inbox: Inbox, writer: LineWriter, stats: Callable[[], dict[str, int | str]]) -> None:
        super().__init__(name="stdin", daemon=True)
        self._fd = fd
        self._inbox = inbox
        self._writer = writer
        self._stats = stats

    def run(self) -> None:
        with contextlib.suppress(OSError):  # closed from the start, which reading finds out
            os.set_blocking(self._fd, True)
        try:
            for line in read_lines(self._fd):
                self._accept(line)
        except ClientGone:
            pass  # the main thread or the watchdog leaves; a request that is being computed must not wait for us
        finally:
            self._inbox.close()

    def _accept(self, line: bytes | BadCommand) -> None:
        if isinstance(line, BadCommand):
            self._inbox.put(Ticket(b"", error=line))
            return
        verb = line.split(None, 1)[:1]
        if not verb:
            return
        if verb[0] == b"GEN":
            self._inbox.put(Ticket(line))
            return
        try:
            command = parse_command(line)
        except BadCommand as error:
            self._inbox.put(Ticket(b"", error=error))
            return
        match command:
            case Stop():
                self._inbox.stop(command)
            case Ping(word):
                self._writer.write([Pong(word)])
            case StatsRequest():
                self._writer.write([Stats(self._stats())])
            case Quit():
                self._inbox.close()

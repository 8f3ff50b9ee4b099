"""The engine process: load, say what was loaded, answer requests one after the other, leave with an exit code.

The only place that turns errors into ERR lines. The main thread runs the model; the reader thread and the watchdog run
beside it. How a model becomes a session is passed in, so that tests drive this very daemon with a session of their own.
"""

import faulthandler
import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Protocol

from engine.config import EngineConfig, parse_flags
from engine.errors import BadRequest, BadToken, ContextExceeded, EngineError, Internal, OutOfMemory
from engine.generate import SequenceModel, generate
from engine.messages import PROTOCOL_VERSION, Done, Err, Gen, Info, Ready
from engine.protocol import parse_command
from engine.stats import EngineStats
from engine.stdio import ClientGone, Inbox, LineWriter, Reader, Ticket, take_stdout
from engine.watchdog import Watchdog

log = logging.getLogger("terrace.engine")

INFO_ORDER = (
    "arch", "context", "vocab", "eos", "backend", "isa", "pool_workers", "kv", "prefill", "window_max",
    "weights_mib", "state_mib", "deterministic",
)  # fmt: skip

REFUSALS = (BadRequest, BadToken, ContextExceeded)  # raised before anything is computed


class LoadedSession(SequenceModel, Protocol):
    """A session that also describes itself and can be freed."""

    def info(self) -> dict[str, str | int]: ...
    def close(self) -> None: ...


def load_model(config: EngineConfig) -> LoadedSession:
    """The session of the configured model. A model that is not there is refused before anything heavy is imported."""
    from packs.manifest import resolve_model

    source = resolve_model(config.model)

    from engine.session import load_session  # opens the files, then brings numba and compiles kernels

    return load_session(source, config)


def run(argv: Sequence[str] | None = None, *, load: Callable[[EngineConfig], LoadedSession] = load_model) -> int:
    """The whole life of the engine; returns its exit code."""
    parent_pid = os.getppid()
    config = parse_flags(argv)
    try:
        protocol_fd = take_stdout(config.log_file)
    except OSError as error:
        what = "open the log file" if error.filename else "use stdout"
        print(f"terrace-engine: cannot {what}: {error}", file=sys.stderr)
        return 1
    faulthandler.enable(file=2)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s", force=True)
    watchdog = Watchdog(parent_pid=parent_pid, protocol_fd=protocol_fd)
    watchdog.start()
    try:
        return Daemon(LineWriter(protocol_fd)).run(config, load=load)
    except ClientGone:
        log.info("nobody reads stdout any more, leaving")
        return 1
    finally:
        watchdog.finish()


class Daemon:
    """Loads a session and serves it until the input ends."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer
        self._inbox = Inbox()
        self._stats = EngineStats(queue_length=lambda: self._inbox.waiting)

    def run(self, config: EngineConfig, *, load: Callable[[EngineConfig], LoadedSession]) -> int:
        """Serve until QUIT or the end of input (0), or until an error after which nothing can go on (1)."""
        Reader(0, inbox=self._inbox, writer=self._writer, stats=self._stats.fields).start()
        started_s = time.monotonic()
        try:
            session = load(config)
        except Exception as error:
            return self._end(_described(error, "the model does not fit into memory"))
        try:
            gc.collect()
            gc.freeze()  # what was loaded stays; later collections need not walk it
            self._announce(session)
            log.info("ready after %.1f s", time.monotonic() - started_s)
            return self._serve(session)
        except ClientGone:
            raise
        except Exception as error:
            return self._end(_described(error, "out of memory between requests"))
        finally:
            session.close()

    def _end(self, error: EngineError, *, request_id: str | None = None) -> int:
        """Say why the process ends; returns the exit code."""
        self._writer.write([Err(code=error.code, message=str(error), id=request_id, fatal=True)])
        return 1

    def _announce(self, session: LoadedSession) -> None:
        known = session.info()
        fields: dict[str, int | str] = {"protocol": PROTOCOL_VERSION, "engine": _version()}
        fields.update((key, known[key]) for key in INFO_ORDER if key in known)
        fields.update((key, value) for key, value in known.items() if key not in fields)
        self._stats.state = "idle"
        self._writer.write([Info(fields), Ready(session.max_context, ("stop",))])

    def _serve(self, session: LoadedSession) -> int:
        while (ticket := self._inbox.take()) is not None:
            try:
                self._answer(session, ticket)
            except ClientGone:
                raise
            except Exception as raised:
                self._inbox.finish()
                self._stats.count_error()
                error = _described(raised, "not enough memory for this request")
                if error.fatal:
                    return self._end(error, request_id=ticket.id)
                if not isinstance(error, REFUSALS):
                    session.reset()  # what failed half-way is dropped, never reused
                self._writer.write([Err(code=error.code, message=str(error), id=ticket.id)])
        return 0

    def _answer(self, session: LoadedSession, ticket: Ticket) -> None:
        """Carry out one request up to its DONE, or raise what ends it."""
        if ticket.error is not None:
            raise ticket.error
        gen = parse_command(ticket.line)
        ticket.line = b""  # up to 16 MiB that nobody needs any more
        if not isinstance(gen, Gen):
            raise Internal(f"{type(gen).__name__} was queued as a request")
        self._stats.requests += 1
        for events in generate(session, gen, is_cancelled=lambda: ticket.cancelled):
            for event in events:
                self._stats.count(event)
            if isinstance(events[-1], Done):
                self._stats.set_usage(session.usage())
                self._inbox.finish()
            self._writer.write(events)


def _described(error: Exception, memory_message: str) -> EngineError:
    """The error as the wire knows it, logged; an exception that nobody foresaw is logged with its traceback."""
    if isinstance(error, EngineError):
        log.error("%s: %s", error.code, error)
        return error
    if isinstance(error, MemoryError):
        log.error("%s: %s", memory_message, error, exc_info=error)
        return OutOfMemory(f"{memory_message}: {error}" if str(error) else memory_message)
    log.error("unexpected error", exc_info=error)
    return Internal(f"{type(error).__name__}: {error}")


def _version() -> str:
    try:
        return metadata.version("terrace")
    except metadata.PackageNotFoundError:
        return "uninstalled"  # run from a source tree

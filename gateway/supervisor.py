"""Keeps one engine alive: starts it, waits for READY, starts it again when it dies, ends it with the gateway.

Owns the engine's state as clients see it. Restarts back off; a waiting request cuts the wait short. A model that cannot
be loaded is not tried again, and one that was unloaded stays so until it is asked for. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
from collections.abc import Sequence

import msgspec

from engine.protocol import Err, Ready
from gateway.aftermath import GpuMemoryOf, Possessions, clear_up, possessions
from gateway.config import GatewayConfig
from gateway.engine_process import Ended, EngineProcess, Garbled
from gateway.errors import Unavailable
from gateway.monitor.log_tail import LogTail

log = logging.getLogger("gateway.supervisor")

_BACK_OFF_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
_PROVEN_AFTER_S = 60.0  # an engine that lived this long failed for a new reason
_USAGE_EXIT_CODE = 2  # the engine did not understand its flags
_RESTART_WAIT_S = 120.0  # how long a request waits for an engine that is being restarted
# How long an engine that is unloaded may take: to leave when asked to, then when told to.
_QUIT_S = 5.0
_TERMINATE_S = 2.0


class EngineState(enum.Enum):
    """What /health says."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    UNLOADED = "unloaded"
    STOPPED = "stopped"


class LoadFailed(Exception):
    """The engine did not become ready; `permanent` says that trying again is useless."""

    def __init__(self, reason: str, *, permanent: bool) -> None:
        super().__init__(reason)
        self.permanent = permanent


class Failure(msgspec.Struct, frozen=True):
    """Why an engine ended or could not be started."""

    unix_s: float
    message: str


class Supervisor:
    """One engine at a time, restarted as needed."""

    def __init__(
        self, command: Sequence[str], config: GatewayConfig, *, log_tail: LogTail, gpu_memory_of: GpuMemoryOf
    ) -> None:
        self._command = list(command)
        self._config = config
        self._log_tail = log_tail
        self._gpu_memory_of = gpu_memory_of
        self._control = asyncio.Lock()  # one order at a time
        self._process: EngineProcess | None = None
        self._changed = asyncio.Condition()
        self._wanted = asyncio.Event()  # a request waits: do not sit out the back-off
        self._keeper: asyncio.Task[None] | None = None
        self._failures = 0  # in a row
        self._starts = 0
        self._held: Possessions | None = None  # by the engine, since it became ready
        self._was_ready = False
        self.state = EngineState.LOADING
        self.reason = "Loading model"
        self.since_unix_s = time.time()  # when the state began
        self.last_failure: Failure | None = None
        self.idle = True  # the client clears it while a request is with the engine

    @property
    def process(self) -> EngineProcess | None:
        """The engine's process, in whatever state; None when there is none."""
        return None if self._process is None or self._process.ended.is_set() else self._process

    @property
    def restarts(self) -> int:
        """Starts after the first."""
        return max(self._starts - 1, 0)

    def ready_engine(self) -> EngineProcess:
        """The ready engine; raises Unavailable while there is none."""
        if self.state is not EngineState.READY or self._process is None:
            raise Unavailable(self.reason, state=self.state.value)
        if not self._process.alive:  # its end is not handled yet
            raise Unavailable(f"Restarting: {self._process.obituary()}", state=EngineState.RESTARTING.value)
        return self._process

    def start(self) -> None:
        """Begin to load; returns at once."""
        self._keeper = asyncio.create_task(self._keep())

    async def engine(self) -> EngineProcess:
        """The ready engine. While one is restarted this waits; in every other state it raises Unavailable."""
        if self.state is EngineState.READY and self._process is not None and not self._process.alive:
            await self._set(EngineState.RESTARTING, f"Restarting: {self._process.obituary()}")
        if self.state is EngineState.RESTARTING:
            self._wanted.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RESTART_WAIT_S), self._changed:
                    await self._changed.wait_for(lambda: self.state is not EngineState.RESTARTING)
        return self.ready_engine()

    async def load(self) -> None:
        """Load a model that is unloaded or failed; returns at once. Nothing to do in any other state."""
        async with self._control:
            if self.state in (EngineState.UNLOADED, EngineState.FAILED):
                self._failures = 0
                await self._set(EngineState.LOADING, "Loading model")
                self.start()

    async def unload(self) -> None:
        """End the engine and give its memory back; returns when it is gone."""
        async with self._control:
            if self.state not in (EngineState.UNLOADED, EngineState.STOPPED):
                await self._set(EngineState.UNLOADED, "The model is unloaded: POST /v1/engine/load loads it")
                await self._end("the engine was unloaded", quit_s=_QUIT_S, terminate_s=_TERMINATE_S)

    async def restart(self) -> None:
        """End the engine and start another; requests wait for it. Returns when the old one is gone."""
        async with self._control:
            if self.state is not EngineState.STOPPED:
                await self._set(EngineState.RESTARTING, "Restarting: it was asked for")
                await self._end("the engine was restarted on request", quit_s=_QUIT_S, terminate_s=_TERMINATE_S)
                self._failures = 0
                self.start()

    async def announce_stop(self) -> None:
        """No request gets an engine any more, and those that wait for one are told."""
        await self._set(EngineState.STOPPED, "The server is stopping")

    async def stop(self, *, quit_s: float, terminate_s: float) -> None:
        """End the engine and restart no more."""
        await self.announce_stop()
        async with self._control:
            await self._end("the server is stopping", quit_s=quit_s, terminate_s=terminate_s)

    def note_served(self) -> None:
        """A request was answered: the next failure starts the back-off anew."""
        self._failures = 0

    async def _set(self, state: EngineState, reason: str) -> None:
        if self.state is EngineState.STOPPED:
            return
        if state is not self.state:
            self.since_unix_s = time.time()
        self.state = state
        self.reason = reason
        async with self._changed:
            self._changed.notify_all()

    async def _end(self, note: str, *, quit_s: float, terminate_s: float) -> None:
        """End keeper and engine."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        if (process := self.process) is not None:
            await process.shutdown(note, quit_s=quit_s, terminate_s=terminate_s)
            await self._bury(process)

    async def _bury(self, process: EngineProcess) -> None:
        """Log that nothing of an ended engine is left, once there is nothing."""
        aftermath = await clear_up(process.pid, self._held, self._gpu_memory_of)
        self._held = None
        log.info("engine %d: %s", process.number, aftermath)

    def _note_failure(self, message: str) -> None:
        self.last_failure = Failure(round(time.time(), 3), message)
        log.error("%s", message)

    async def _keep(self) -> None:
        """Start, watch, start again."""
        while True:
            try:
                process = await self._load()
            except LoadFailed as failure:
                self._note_failure(str(failure))
                if failure.permanent:
                    await self._set(EngineState.FAILED, str(failure))
                    return
                await self._set(EngineState.RESTARTING, f"Restarting: {failure}")
            else:
                self._wanted.clear()
                self._was_ready = True
                self._held = await possessions(process.pid, self._gpu_memory_of)
                await self._set(EngineState.READY, "ok")
                ready_s = time.monotonic()
                await self._watch(process)
                if time.monotonic() - ready_s > _PROVEN_AFTER_S:
                    self._failures = 0
                await self._set(EngineState.RESTARTING, f"Restarting: {process.obituary()}")
                self._note_failure(process.obituary())
                await self._bury(process)
            await self._back_off()

    async def _back_off(self) -> None:
        delay_s = _BACK_OFF_S[min(self._failures, len(_BACK_OFF_S) - 1)]
        self._failures += 1
        if delay_s:
            log.info("the next start is in %g s, or with the next request", delay_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), delay_s)
        self._wanted.clear()

    async def _load(self) -> EngineProcess:
        """Start one engine and wait until it is ready."""
        self._starts += 1
        try:
            process = await EngineProcess.start(self._command, self._starts, self._log_tail)
        except OSError as error:
            raise LoadFailed(f"the engine cannot be started: {error}", permanent=True) from error
        self._process = process
        started_s = time.monotonic()
        try:
            async with asyncio.timeout(self._config.ready_timeout):
                await self._await_ready(process)
        except TimeoutError:
            process.kill(f"the engine was not ready within {self._config.ready_timeout:g} s")
            await process.ended.wait()
            await self._bury(process)
            raise LoadFailed(process.obituary(), permanent=False) from None
        except LoadFailed:
            await self._bury(process)
            raise
        log.info("engine %d is ready after %.1f s", process.number, time.monotonic() - started_s)
        return process

    async def _await_ready(self, process: EngineProcess) -> None:
        while True:
            match await process.items.get():
                case Ready():
                    return
                case Err() as error:
                    await process.ended.wait()
                    # Memory that was never enough is not there at the next try; what a dead engine held may come back.
                    hopeless = error.code == "bad_model" or (error.code == "out_of_memory" and not self._was_ready)
                    raise LoadFailed(error.message, permanent=hopeless)
                case Ended():
                    raise LoadFailed(process.obituary(), permanent=process.exit_code == _USAGE_EXIT_CODE)
                case Garbled() as garbled:
                    log.warning("engine %d: %s", process.number, garbled.reason)

    async def _watch(self, process: EngineProcess) -> None:
        """Until the process ends. It has to answer pings, while it works too: they are answered out of band."""
        timeout_s = self._config.ping_timeout
        process.last_heard_s = time.monotonic()
        while not process.ended.is_set():
            asked_s = time.monotonic()
            await process.ping()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.ended.wait(), timeout_s / 3)
            if process.ended.is_set():
                return
            now_s = time.monotonic()
            if now_s - asked_s > timeout_s:  # it was this process that stood still; what came meanwhile is unread
                process.last_heard_s = now_s
            elif now_s - process.last_heard_s > timeout_s:
                process.kill(f"the engine did not answer for {timeout_s:g} s")
                await process.ended.wait()

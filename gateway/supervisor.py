"""Keeps one engine alive: starts it, waits for READY, starts it again when it dies, ends it with the gateway.

Owns the engine's state as clients see it. Restarts back off; a waiting request cuts the wait short. A model that cannot
be loaded is not tried again. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
from collections import deque
from collections.abc import Sequence

from engine.protocol import Err, Ready
from gateway.config import GatewayConfig
from gateway.engine_process import Ended, EngineProcess, Garbled
from gateway.errors import Unavailable

log = logging.getLogger("gateway.supervisor")

_LOG_RING_LINES = 200
_BACK_OFF_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
_PROVEN_AFTER_S = 60.0  # an engine that lived this long failed for a new reason
_USAGE_EXIT_CODE = 2  # the engine did not understand its flags
_RESTART_WAIT_S = 120.0  # how long a request waits for an engine that is being restarted


class EngineState(enum.Enum):
    """What /health says."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


class LoadFailed(Exception):
    """The engine did not become ready; `permanent` says that trying again is useless."""

    def __init__(self, reason: str, *, permanent: bool) -> None:
        super().__init__(reason)
        self.permanent = permanent


class Supervisor:
    """One engine at a time, restarted as needed."""

    def __init__(self, command: Sequence[str], config: GatewayConfig) -> None:
        self._command = list(command)
        self._config = config
        self._process: EngineProcess | None = None
        self._changed = asyncio.Condition()
        self._wanted = asyncio.Event()  # a request waits: do not sit out the back-off
        self._keeper: asyncio.Task[None] | None = None
        self._failures = 0  # in a row
        self._starts = 0
        self._was_ready = False
        self.state = EngineState.LOADING
        self.reason = "Loading model"
        self.idle = True  # the client clears it while a request is with the engine

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

    async def stop(self, *, quit_s: float, terminate_s: float) -> None:
        """End the engine and restart no more."""
        process = self._process
        await self._set(EngineState.STOPPED, "The server is stopping")
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        if process is not None:
            await process.shutdown(quit_s=quit_s, terminate_s=terminate_s)

    def note_served(self) -> None:
        """A request was answered: the next failure starts the back-off anew."""
        self._failures = 0

    async def _set(self, state: EngineState, reason: str) -> None:
        if self.state is EngineState.STOPPED:
            return
        self.state = state
        self.reason = reason
        async with self._changed:
            self._changed.notify_all()

    async def _keep(self) -> None:
        """Start, watch, start again."""
        while True:
            try:
                process = await self._load()
            except LoadFailed as failure:
                log.error("%s", failure)
                if failure.permanent:
                    await self._set(EngineState.FAILED, str(failure))
                    return
                await self._set(EngineState.RESTARTING, f"Restarting: {failure}")
            else:
                self._wanted.clear()
                self._was_ready = True
                await self._set(EngineState.READY, "ok")
                ready_s = time.monotonic()
                await self._watch(process)
                if time.monotonic() - ready_s > _PROVEN_AFTER_S:
                    self._failures = 0
                await self._set(EngineState.RESTARTING, f"Restarting: {process.obituary()}")
                log.error("%s", process.obituary())
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
            process = await EngineProcess.start(self._command, self._starts, deque(maxlen=_LOG_RING_LINES))
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
            raise LoadFailed(process.obituary(), permanent=False) from None
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

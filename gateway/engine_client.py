"""Requests to the engine, one at a time and in order: write GEN, read to DONE, clean up whatever happens.

The lock is held from GEN to the engine's last word about it. A request that is given up (client gone, task cancelled)
is stopped and read to its end before the next one may write. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn

import msgspec

from engine.protocol import Done, Err, Gen, Progress, Resume, Stop, TokenLine
from gateway.engine_process import Ended, EngineItem, EngineProcess, Garbled
from gateway.errors import ApiError, ContextLengthExceeded, EngineFailed, InternalError
from gateway.supervisor import Supervisor

log = logging.getLogger("gateway.client")

_SLOWEST_PROMPT_TOKENS_PER_S = 50.0  # until the engine has shown its own rate
_CHUNK_ALLOWANCE = 3.0  # a prompt chunk may take this many times as long as the one before
_UNKNOWN_CHUNK_TOKENS = 32768

RunEvent = Resume | Progress | TokenLine | Done


class Patience:
    """How long the engine may say nothing: the timeout, and more while it reads a prompt."""

    def __init__(self, silence_s: float, prompt_tokens: int, chunk_tokens: int) -> None:
        self._silence_s = silence_s
        self._last_progress_ms = 0
        self.allowance_s = silence_s + min(prompt_tokens, chunk_tokens) / _SLOWEST_PROMPT_TOKENS_PER_S

    def note(self, event: RunEvent) -> None:
        """Adapt to what the engine has announced."""
        if isinstance(event, Progress):
            chunk_s = max(event.ms - self._last_progress_ms, 0) / 1000
            self._last_progress_ms = event.ms
            self.allowance_s = max(self._silence_s, _CHUNK_ALLOWANCE * chunk_s)
        elif isinstance(event, TokenLine):
            self.allowance_s = self._silence_s


class EngineClient:
    """Serializes requests in order of arrival."""

    def __init__(self, supervisor: Supervisor, *, silence_timeout_s: float) -> None:
        self.supervisor = supervisor
        self._silence_timeout_s = silence_timeout_s
        self._lock = asyncio.Lock()  # asyncio's lock is first come, first served
        self._numbers = itertools.count(1)
        self._prefix = uuid.uuid4().hex[:8]
        self._drains: set[asyncio.Task[None]] = set()
        self.waiting = 0

    @asynccontextmanager
    async def run(self, gen: Gen) -> AsyncIterator[Run]:
        """Wait for the turn, send the request, and leave the engine free again at the end."""
        self.waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self.waiting -= 1
        handed_over = False
        try:
            process = await self.supervisor.engine()
            if len(gen.tokens) >= process.max_context:
                raise ContextLengthExceeded(len(gen.tokens), process.max_context)
            gen = msgspec.structs.replace(gen, id=f"{self._prefix}-{next(self._numbers)}")
            run = Run(process, gen, silence_timeout_s=self._silence_timeout_s)
            self.supervisor.idle = False
            try:
                await run.send()
                yield run
            finally:
                if run.done:
                    self.supervisor.note_served()
                elif not run.finished:
                    # In a task of its own: no cancellation can let the lock go before the engine is free.
                    handed_over = True
                    drain = asyncio.create_task(self._drain(run))
                    self._drains.add(drain)
                    drain.add_done_callback(self._drains.discard)
        finally:
            if not handed_over:
                self._release()

    async def settle(self) -> None:
        """Wait for requests that are being given up."""
        if self._drains:
            await asyncio.wait(set(self._drains))

    async def _drain(self, run: Run) -> None:
        """Stop a run that nobody reads any more and read it to its end."""
        try:
            await run.abandon()
        except ApiError as error:
            log.warning("while a request was being stopped: %s", error.message)
        finally:
            self._release()

    def _release(self) -> None:
        self.supervisor.idle = True
        self._lock.release()


class Run:
    """One request while it is with the engine: iterate over its events, up to and including Done."""

    def __init__(self, process: EngineProcess, gen: Gen, *, silence_timeout_s: float) -> None:
        self._process = process
        self._gen = gen
        chunk = process.info.get("prefill")
        chunk_tokens = chunk if isinstance(chunk, int) and chunk > 0 else _UNKNOWN_CHUNK_TOKENS
        self._patience = Patience(silence_timeout_s, len(gen.tokens), chunk_tokens)
        self._tokens_seen = 0
        self._stopped = False
        self.done: Done | None = None
        self.finished = False  # the engine has said its last word on it, or is gone
        self.stop_ids = process.stop_ids
        self.max_context = process.max_context

    async def send(self) -> None:
        """Write the GEN line. What an earlier request left in the queue was drained; anything there is stray."""
        while not self._process.items.empty():
            item = self._process.items.get_nowait()
            if isinstance(item, Ended):
                self._process.items.put_nowait(item)
                break
            log.warning("engine %d: %r came between requests", self._process.number, item)
        try:
            async with asyncio.timeout(self._patience.allowance_s):
                await self._process.send(self._gen)
        except ConnectionError:
            await self._fail_dead()
        except TimeoutError:
            await self._fail_silent()

    async def stop(self, *, keep: int) -> None:
        """Ask for an early end; the events up to Done still come. `keep`: generated tokens that the client saw."""
        if not self._stopped and not self.finished:
            self._stopped = True
            with contextlib.suppress(ConnectionError):  # the reader sees the end
                await self._process.send(Stop(id=self._gen.id, keep=keep))

    async def abandon(self) -> None:
        """Stop and read to the end."""
        await self.stop(keep=self._tokens_seen)
        async for _ in self:
            pass

    async def __aiter__(self) -> AsyncIterator[RunEvent]:
        while not self.finished:
            event = self._read(await self._next())
            if event is None:
                continue
            self._patience.note(event)
            if isinstance(event, TokenLine):
                self._tokens_seen += 1
            elif isinstance(event, Done):
                self.finished = True
                self.done = event
            yield event

    async def _next(self) -> EngineItem:
        items = self._process.items
        if not items.empty():
            item = items.get_nowait()
        else:
            try:
                async with asyncio.timeout(self._patience.allowance_s):
                    item = await items.get()
            except TimeoutError:
                await self._fail_silent()
        if isinstance(item, Ended):
            items.put_nowait(item)
            await self._fail_dead()
        return item

    def _read(self, item: EngineItem) -> RunEvent | None:
        """What an item means for this run; None if it is not about it. Raises on errors."""
        match item:
            case Garbled():
                raise EngineFailed(item.reason)  # the caller's clean-up stops the run
            case Done() | Err() if item.id not in (None, self._gen.id):
                log.warning("engine %d: ignored %r, not of this request", self._process.number, item)
                return None
            case Err():
                self.finished = True
                raise self._error(item)
            case Resume() | Progress() | TokenLine() | Done():
                return item
        return None

    def _error(self, error: Err) -> ApiError:
        if error.code == "context_exceeded":
            return ContextLengthExceeded(len(self._gen.tokens), self.max_context)
        if error.code in ("bad_request", "bad_token"):  # we wrote that line
            return InternalError(f"the engine refused the request: {error.message}")
        return EngineFailed(f"the engine failed on this request ({error.code}): {error.message}")

    async def _fail_dead(self) -> NoReturn:
        self.finished = True
        await self._process.ended.wait()
        raise EngineFailed(f"{self._process.obituary()}; the next request finds it restarted")

    async def _fail_silent(self) -> NoReturn:
        self.finished = True
        allowance_s = self._patience.allowance_s
        self._process.kill(f"the engine said nothing for {allowance_s:.0f} s while working on a request")
        raise EngineFailed(f"{self._process.obituary()}; it is restarted")

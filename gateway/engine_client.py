"""Requests to the engine, one at a time and in order: write GEN, read to DONE, clean up whatever happens.

The turn is held from GEN to the engine's last word about it. A request that is given up (client gone, task cancelled)
is stopped and read to its end before the next one may write. Every request is entered in the ledger. Runs on the event
loop.
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
from gateway.engine_process import Ended, EngineItem, EngineProcess, Garbled, Interrupted
from gateway.errors import ApiError, ContextLengthExceeded, EngineFailed, InternalError, Overloaded, Unavailable
from gateway.monitor.ledger import Ledger, LiveRequest
from gateway.supervisor import Supervisor
from gateway.turns import QueueFull, Turns

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

    def __init__(self, supervisor: Supervisor, ledger: Ledger, *, silence_timeout_s: float, max_queue: int) -> None:
        self.supervisor = supervisor
        self._ledger = ledger
        self._silence_timeout_s = silence_timeout_s
        self._turns = Turns(max_queue)
        self._numbers = itertools.count(1)
        self._prefix = uuid.uuid4().hex[:8]
        self._drains: set[asyncio.Task[None]] = set()
        self._running: Run | None = None

    @property
    def waiting(self) -> int:
        """How many requests wait for their turn."""
        return self._turns.waiting

    @asynccontextmanager
    async def run(self, gen: Gen) -> AsyncIterator[Run]:
        """Wait for the turn, send the request, and leave the engine free again at the end."""
        entry = self._ledger.open(len(gen.tokens))
        run: Run | None = None
        try:
            await self._take_turn()
            try:
                process = await self.supervisor.engine()
                if len(gen.tokens) >= process.max_context:
                    raise ContextLengthExceeded(len(gen.tokens), process.max_context)
                gen = msgspec.structs.replace(gen, id=f"{self._prefix}-{next(self._numbers)}")
                run = self._running = Run(process, gen, entry, silence_timeout_s=self._silence_timeout_s)
                self.supervisor.idle = False
                await run.send()
                yield run
            finally:
                self._leave(run)
        except ApiError as error:
            entry.error = error.code
            raise
        finally:
            if run is None or run.finished:
                self._ledger.close(entry)

    def interrupt(self, reason: str) -> None:
        """End the running request with an error of this text; those that wait are not touched."""
        if self._running is not None:
            self._running.interrupt(reason)

    def refuse_all(self, reason: str) -> None:
        """From now on: who waits, who comes and who is running gets an error of this text."""
        self._turns.refuse_all(Unavailable(reason, state="stopped"))
        self.interrupt(reason)

    async def settle(self) -> None:
        """Wait for requests that are being given up."""
        if self._drains:
            await asyncio.wait(set(self._drains))

    async def _take_turn(self) -> None:
        try:
            await self._turns.take()
        except QueueFull as full:
            self._ledger.totals.refused += 1
            raise Overloaded(f"{full.waiting} requests are waiting, which is the limit (--max-queue)") from None

    def _leave(self, run: Run | None) -> None:
        """Give the turn back, once the engine has nothing to do for us any more."""
        if run is None or run.finished:
            if run is not None and run.done is not None:
                self.supervisor.note_served()
            self._release()
            return
        # In a task of its own: no cancellation can let the turn go before the engine is free.
        drain = asyncio.create_task(self._drain(run))
        self._drains.add(drain)
        drain.add_done_callback(self._drains.discard)

    async def _drain(self, run: Run) -> None:
        """Stop a run that nobody reads any more and read it to its end."""
        try:
            await run.abandon()
        except ApiError as error:
            log.warning("while a request was being stopped: %s", error.message)
        finally:
            self._ledger.close(run.entry)
            self._release()

    def _release(self) -> None:
        self._running = None
        self.supervisor.idle = True
        self._turns.give()


class Run:
    """One request while it is with the engine: iterate over its events, up to and including Done."""

    def __init__(self, process: EngineProcess, gen: Gen, entry: LiveRequest, *, silence_timeout_s: float) -> None:
        self._process = process
        self._gen = gen
        self.entry = entry
        chunk = process.info.get("prefill")
        chunk_tokens = chunk if isinstance(chunk, int) and chunk > 0 else _UNKNOWN_CHUNK_TOKENS
        self._patience = Patience(silence_timeout_s, len(gen.tokens), chunk_tokens)
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
            if isinstance(item, Interrupted):  # it came too late for the request that it was meant for
                continue
            log.warning("engine %d: a %s came between requests", self._process.number, type(item).__name__)
        self.entry.start(has_vram=self._process.info.get("backend") != "cpu")
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

    def interrupt(self, reason: str) -> None:
        """Whoever reads this run gets an error of this text, after what has come already."""
        self._process.items.put_nowait(Interrupted(reason))

    async def abandon(self) -> None:
        """Stop and read to the end."""
        self.entry.given_up = True
        await self.stop(keep=self.entry.generated)
        async for _ in self:
            pass

    async def __aiter__(self) -> AsyncIterator[RunEvent]:
        while not self.finished:
            event = self._read(await self._next())
            if event is None:
                continue
            self._patience.note(event)
            self.entry.note(event)
            if isinstance(event, Done):
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
            case Interrupted():
                if self._stopped:  # it is on its way out already
                    return None
                raise EngineFailed(item.reason)
            case Done() | Err() if item.id not in (None, self._gen.id):
                log.warning("engine %d: ignored a %s of another request", self._process.number, type(item).__name__)
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

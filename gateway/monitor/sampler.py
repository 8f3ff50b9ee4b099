"""A clock that reads the machine and the ledger twice a second, keeps five minutes of it, and wakes who follows.

Readings are made on a worker thread; everything else runs on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable

import msgspec

from gateway.monitor.ledger import Ledger, Totals
from gateway.monitor.machine import Machine, MachineReading

log = logging.getLogger("gateway.monitor")

TICK_S = 0.5
_KEPT_TICKS = 600


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One moment, for plots. Rates are over the time since the sample before."""

    unix_s: float
    prompt_tokens_per_s: float
    tokens_per_s: float
    waiting: int
    cpu: float | None
    ram_used_mib: int
    engine_rss_mib: int | None
    gpu_load: tuple[float | None, ...] | None
    gpu_used_mib: tuple[int, ...] | None
    hit_rate: float | None  # of the requests that ended in this moment; None when none did
    accepted_rate: float | None


class Sampler:
    """`engine_pid` and `waiting` are asked at every tick."""

    def __init__(self, ledger: Ledger, engine_pid: Callable[[], int | None], waiting: Callable[[], int]) -> None:
        self._ledger = ledger
        self._engine_pid = engine_pid
        self._waiting = waiting
        self._machine: Machine | None = None
        self._changed = asyncio.Condition()
        self._samples: deque[Sample] = deque(maxlen=_KEPT_TICKS)
        self._last_s = time.monotonic()
        self._last_tokens = ledger.tokens_so_far
        self._last_totals = _copy(ledger.totals)
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.machine: MachineReading | None = None  # the newest reading

    def start(self) -> None:
        """Begin; returns at once."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End, and let the followers go."""
        self._closed = True
        async with self._changed:
            self._changed.notify_all()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def samples(self) -> list[Sample]:
        """The past, the oldest first."""
        return list(self._samples)

    async def next_tick(self) -> bool:
        """Wait for the next sample; False when there will be none."""
        if not self._closed:
            async with self._changed:
                await self._changed.wait()
        return not self._closed

    async def gpu_mib_of(self, pid: int) -> int | None:
        """Memory that a process holds on all graphics cards; None if that cannot be known."""
        return None if self._machine is None else await asyncio.to_thread(self._machine.gpu_mib_of, pid)

    async def _run(self) -> None:
        machine = self._machine = await asyncio.to_thread(Machine)
        while True:
            try:
                self.machine = await asyncio.to_thread(machine.read, self._engine_pid())
                self._samples.append(self._sample(self.machine))
            except Exception:  # a reading that fails must not end the monitor; one line each time is enough to notice
                log.exception("the machine could not be read")
            async with self._changed:
                self._changed.notify_all()
            await asyncio.sleep(TICK_S)

    def _sample(self, machine: MachineReading) -> Sample:
        now_s, tokens, totals = time.monotonic(), self._ledger.tokens_so_far, _copy(self._ledger.totals)
        before, then = self._last_totals, self._last_tokens
        span_s = max(now_s - self._last_s, 1e-3)
        self._last_s, self._last_tokens, self._last_totals = now_s, tokens, totals
        gpus = machine.gpus
        return Sample(
            unix_s=round(time.time(), 2),
            prompt_tokens_per_s=round(max(tokens[0] - then[0], 0) / span_s, 2),
            tokens_per_s=round(max(tokens[1] - then[1], 0) / span_s, 2),
            waiting=self._waiting(),
            cpu=machine.cpu,
            ram_used_mib=machine.ram_used_mib,
            engine_rss_mib=machine.engine_rss_mib,
            gpu_load=None if gpus is None else tuple(gpu.load for gpu in gpus),
            gpu_used_mib=None if gpus is None else tuple(gpu.memory_used_mib for gpu in gpus),
            hit_rate=share(totals.hits - before.hits, totals.lookups - before.lookups),
            accepted_rate=share(totals.accepted - before.accepted, totals.offered - before.offered),
        )


def share(part: int, whole: int) -> float | None:
    """A ratio with four decimals, None of nothing."""
    return round(part / whole, 4) if whole > 0 else None


def _copy(totals: Totals) -> Totals:
    return msgspec.structs.replace(totals)

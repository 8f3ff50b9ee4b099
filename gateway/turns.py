"""Whose turn it is with the engine: one holder, a bounded queue behind it, first come, first served.

Pure bookkeeping on the event loop; it knows nothing of engines or requests. A waiter that is cancelled leaves no trace,
and `refuse_all` ends every wait with an error of the caller's choice.
"""

from __future__ import annotations

import asyncio
from collections import deque


class QueueFull(Exception):
    """The queue has no room; `waiting` says how many are in it."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} are waiting")
        self.waiting = waiting


class Turns:
    """The right to use one thing."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = False
        self._queue: deque[asyncio.Future[None]] = deque()
        self._refusal: Exception | None = None

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._queue)

    @property
    def held(self) -> bool:
        """Whether somebody has the turn."""
        return self._held

    async def take(self) -> None:
        """Return when it is the caller's turn; raises QueueFull at once, or the refusal."""
        if self._refusal is not None:
            raise self._refusal
        if not self._held:
            self._held = True
            return
        if len(self._queue) >= self.limit:
            raise QueueFull(len(self._queue))
        place = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self.give()  # the turn came in the same moment: hand it on
            raise
        finally:
            if place in self._queue:
                self._queue.remove(place)

    def give(self) -> None:
        """Hand the turn to the next in the queue."""
        while self._queue:
            place = self._queue.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._held = False

    def refuse_all(self, refusal: Exception) -> None:
        """From now on every wait ends with `refusal`; who has the turn keeps it."""
        self._refusal = refusal
        for place in self._queue:
            if not place.done():
                place.set_exception(refusal)
        self._queue.clear()

"""The loop in which the card picks its own tokens: what comes behind a window's launches, and the ring through which the host
reads what was picked.

Owns the stop ids, the settings of a draw and the ring; knows nothing of the model and not which cells there are. One thread.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from engine.backend.base import Draw
from engine.backend.cuda.blocks.plain import HeadBlock
from engine.backend.cuda.device import Device
from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.memory import Memory
from engine.errors import Internal

_RING = 1024  # picked tokens that the host may be behind
_UNDER_WAY = 2  # windows that are launched before the host has read the one before them
_NOTHING = -2  # in the ring: not picked yet; among the stop ids: none
_MOST_STOPS = 64
_GROUPS = 1024  # of the vocabulary, see kernels/sample.cu
DRAW_DTYPE = np.dtype([("top_k", "<i8"), ("top_p", "<f8"), ("log_min_p", "<f8"), ("temperature", "<f8"), ("seed", "<u8")])


class Ahead:
    """Made with the description; `prepare` when there is memory; then `start` and `picks` for every text."""

    def __init__(self, memory: Memory, window: Buffer, head: HeadBlock) -> None:
        self._window, self._head = window, head
        self._stops = memory.array("stops", np.full(_MOST_STOPS, _NOTHING, np.int32))
        self._draw = memory.buffer("draw", DRAW_DTYPE.itemsize)
        self._greatest = memory.buffer("greatest", 8 * _GROUPS)

    def prepare(self, device: Device) -> None:
        """Take the ring, which host and card share."""
        self._device = device
        self._ring = device.pinned((_RING,), np.int32)

    def launches(self, *, draws: bool) -> list[Launch]:
        """What picks a token from the logits of a window of one, the greatest or one that is drawn, and hands it on."""
        advance = Launch("rows", (), "advance", (1, 1, 1), 32, 0, {
            "window": self._window, "best": self._head.best, "ring": self._ring.address, "ring_size": _RING,
            "stops": self._stops, "n_stops": _MOST_STOPS})
        if not draws:
            return [advance]
        vocabulary = (("VOCABULARY", str(self._head.weight.rows)),)
        return [
            Launch("sample", vocabulary, "greatest_of_groups", (_GROUPS // 8, 1, 1), 256, 0,
                   {"logits": self._head.logits, "greatest": self._greatest}),
            Launch("sample", vocabulary, "draw_token", (1, 1, 1), _GROUPS, 0, {
                "window": self._window, "draw": self._draw, "logits": self._head.logits, "greatest": self._greatest,
                "best": self._head.best}),
            advance]

    def start(self, stop_ids: Sequence[int], draw: Draw | None) -> None:
        """Before a text's first window."""
        if len(stop_ids) > _MOST_STOPS:
            raise Internal(f"{len(stop_ids)} stop tokens: at most {_MOST_STOPS}")
        stops = np.full(_MOST_STOPS, _NOTHING, np.int32)
        stops[:len(stop_ids)] = stop_ids
        self._device.upload(self._stops.address, stops)
        self._device.fill_zero(self._head.best.address, self._head.best.n_bytes)
        if draw is not None:
            least = math.log(draw.min_p) if draw.min_p else -math.inf
            values = np.array([(draw.top_k, draw.top_p, least, draw.temperature, draw.seed)], DRAW_DTYPE)
            self._device.upload(self._draw.address, values)
        self._ring.array[:] = _NOTHING

    def picks(self, launch: Callable[[], None], *, limit: int, stop_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Token after token, -1 where a logit was not finite, and how many windows were launched by then."""
        ring, launched = self._ring.array, 0
        for read in range(limit):
            while launched < min(limit, read + _UNDER_WAY):
                launch()
                launched += 1
            place = read % _RING
            self._device.wait_for(lambda place=place: ring[place] != _NOTHING)
            picked = int(ring[place])
            ring[place] = _NOTHING
            yield picked, launched
            if picked < 0 or picked in stop_ids:
                return

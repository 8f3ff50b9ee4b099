"""Tokens drawn on the card are those that the host's sampler draws from the same logits, for any settings and sizes."""

from types import SimpleNamespace

import numpy as np
import pytest

from engine.backend.base import Draw
from engine.backend.cuda.ahead import Ahead
from engine.backend.cuda.backend import WINDOW_DTYPE
from engine.backend.cuda.memory import Memory
from engine.messages import Sampling
from engine.sampling.sampler import pick
from tests.kernels.cuda.conftest import THOROUGH

SETTINGS = [
    {"top_k": 20, "temperature": 1.0}, {"top_k": 1, "temperature": 5.0}, {"top_k": 64, "temperature": 100.0},
    {"top_k": 64, "temperature": 0.7, "top_p": 0.9}, {"top_k": 40, "temperature": 1.5, "min_p": 0.2},
    {"top_k": 33, "temperature": 0.9, "top_p": 0.0}, {"top_k": 64, "temperature": 1e-300},
    {"top_k": 7, "temperature": 2.0, "min_p": 1.0},
    {"top_k": 50, "temperature": 2.0, "top_p": 0.97, "min_p": 0.01}]
VOCABULARIES = (2, 63, 1000, 1025, 4096, 49152) + ((151936, 262144) if THOROUGH else ())


class Drawing:
    """The kernels behind a head, on logits of this test's own."""

    def __init__(self, device, vocabulary: int) -> None:
        self.device, memory = device, Memory(device)
        self.window = memory.buffer("window", WINDOW_DTYPE.itemsize)
        self.head = SimpleNamespace(weight=SimpleNamespace(rows=vocabulary), logits=memory.buffer("logits", 4 * vocabulary),
                                    best=memory.buffer("best", 64))
        self.ahead = Ahead(memory, self.window, self.head)
        self.ahead.prepare(device)
        memory.allocate()
        self.vocabulary = vocabulary

    def draw(self, logits: np.ndarray, how: Draw, position: int) -> int:
        """The token for a position."""
        self.ahead.start((), how)
        window = np.zeros(1, WINDOW_DTYPE)
        window["rows"], window["position"] = 1, position - 1
        self.device.upload(self.window.address, window)
        self.device.upload(self.head.logits.address, logits)
        # the head's own: the greatest logit, with the lowest row
        bits = (logits + np.float32(0)).view(np.uint32).astype(np.uint64)
        ranks = np.where(bits >> np.uint64(31), ~bits & np.uint64(0xFFFFFFFF), bits | np.uint64(0x80000000)) << np.uint64(32)
        ranks |= np.uint64(0xFFFFFFFF) - np.arange(self.vocabulary, dtype=np.uint64)
        best = ranks.max() if np.isfinite(logits).all() else np.uint64(2**64 - 1)
        self.device.upload(self.head.best.address, np.array([best]))

        def launch() -> None:
            for made in self.ahead.launches(draws=True):
                self.device.run(made)

        return next(self.ahead.picks(launch, limit=1, stop_ids=()))[0]


def rows_of(vocabulary: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Kinds of logits: as a model's, many equal ones, all in one group, all negative, of extreme size."""
    plain = rng.standard_normal(vocabulary).astype(np.float32) * 3
    sorted_up = np.sort(plain)
    return [plain, np.round(plain), np.zeros(vocabulary, np.float32), sorted_up, -np.abs(plain) - 1, plain * np.float32(1e37)]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_draws_are_those_of_the_host(vocabulary, device):
    drawing, rng = Drawing(device, vocabulary), np.random.default_rng(vocabulary)
    for i, logits in enumerate(rows_of(vocabulary, rng)):
        for j, settings in enumerate(SETTINGS if vocabulary < 2000 or THOROUGH else SETTINGS[i % 3::3]):
            seed, position = int(rng.integers(2**64, dtype=np.uint64)), int(rng.integers(1, 1 << 20)) + 7 * j
            how = Draw(**{"top_p": 1.0, "min_p": 0.0, "seed": seed} | settings)
            expected = pick(logits, Sampling(**settings), seed=seed, position=position)
            assert drawing.draw(logits, how, position) == expected, (i, settings, seed, position)


def test_a_logit_that_is_no_number_is_not_drawn_over(device):
    drawing = Drawing(device, 1000)
    logits = np.zeros(1000, np.float32)
    logits[17] = np.nan
    assert drawing.draw(logits, Draw(top_k=20, top_p=1.0, min_p=0.0, temperature=1.0, seed=1), 5) == -1

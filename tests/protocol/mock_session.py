"""A session without a model: logits are a hash of the last tokens, and some tokens make something happen."""

import ctypes
import os
import subprocess
import sys
import time
import warnings
from typing import Literal

import numpy as np
from numpy.typing import NDArray

VOCAB = 512
STOP_IDS = (1, 2)
# what a token of the sequence does to the step that reads it
NAN, NO_MEMORY, BUG, SLOW, STUCK, NOISY = 500, 501, 502, 503, 504, 505
SLOW_S = 0.05


class MockSession:
    """Of the same shape as the engine's Session; `log` keeps the sizes of the steps."""

    vocab_size = VOCAB
    window_max = 8
    runs_ahead = False

    def __init__(self, *, max_context: int = 4096, chunk_size: int = 16, stop_ids: tuple[int, ...] = STOP_IDS) -> None:
        self.max_context = max_context
        self.chunk_size = chunk_size
        self.stop_ids = stop_ids
        self.log: list[int | str] = []
        self._tokens: list[int] = []

    @property
    def position(self) -> int:
        return len(self._tokens)

    def reset(self) -> None:
        self.log.append("reset")
        self._tokens = []

    def step(
        self, tokens: NDArray[np.int32], *, logits: Literal["none", "last", "all"] = "last"
    ) -> NDArray[np.float32] | None:
        assert 1 <= len(tokens) <= self.chunk_size
        assert self.position + len(tokens) <= self.max_context
        self.log.append(len(tokens))
        self._tokens += tokens.tolist()
        self._act()
        if logits == "none":
            return None
        row = logits_after(self._tokens)
        if NAN in self._tokens:
            row[7] = np.nan
        return row[np.newaxis]

    def _act(self) -> None:
        if NO_MEMORY in self._tokens:
            raise MemoryError("2 GiB for nothing")
        if BUG in self._tokens:
            raise RuntimeError("this is a bug")
        if SLOW in self._tokens:
            time.sleep(SLOW_S)
        if STUCK in self._tokens:
            time.sleep(120)
        if NOISY in self._tokens:
            make_noise()

    def info(self) -> dict[str, str | int]:
        return {
            "deterministic": 0, "later": "x", "state_mib": 0, "weights_mib": 0, "window_max": self.window_max,
            "prefill": self.chunk_size, "kv": "f32", "pool_workers": 1, "isa": "none", "backend": "mock",
            "eos": ",".join(map(str, self.stop_ids)), "vocab": VOCAB, "context": self.max_context, "arch": "mock",
        }  # fmt: skip

    def usage(self) -> dict[str, int]:
        n_steps = len(self.log)
        return {"hits": n_steps, "lookups": 2 * n_steps, "ram_blobs": 0, "file_blobs": 0, "file_mb": 0}

    def close(self) -> None:
        print("the mock session is closed")


def logits_after(tokens: list[int]) -> NDArray[np.float32]:
    """f32 [vocab]: a pure function of the last three tokens and the length; tokens that act are never likely."""
    generator = np.random.default_rng([len(tokens), *tokens[-3:]])
    row = generator.standard_normal(VOCAB, dtype=np.float32) * 2
    row[NAN:] -= 99
    return row


def greedy_reply(prompt: list[int], max_new: int, *, stop_ids: tuple[int, ...] = STOP_IDS) -> list[int]:
    """What the engine must answer at temperature 0."""
    text = list(prompt)
    while len(text) < len(prompt) + max_new:
        text.append(int(logits_after(text).argmax()))
        if text[-1] in stop_ids:
            break
    return text[len(prompt) :]


def make_noise() -> None:
    """Every way in which a library gets something onto the standard output."""
    print("T 1 from Python")
    os.write(1, b"T 2 from a file descriptor\n")
    libc = ctypes.CDLL(None)
    libc.printf(b"T 3 from C\n")
    libc.fflush(None)
    warnings.warn("T 4 from a warning", stacklevel=1)
    subprocess.run([sys.executable, "-S", "-c", "print('T 5 from a child')"], check=True)
    sys.__stdout__.write("T 6 from the original stream\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]

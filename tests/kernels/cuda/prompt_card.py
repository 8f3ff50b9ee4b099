"""A chunk of a prompt on the emulated card, and the CPU backend's blocks as what to expect."""

from collections.abc import Callable

import numpy as np

from engine.backend.cpu.backend import CpuBackend
from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.memory import Memory
from engine.backend.cuda.prompt.chunk import Chunk

CONTEXT = 128
WINDOW_DTYPE = np.dtype([(name, "<i8") for name in ("rows", "position", "steps", "stopped", "out_first", "out_rows")]
                        + [("tokens", "<i4", (8,))])  # kernels/window.cuh


class PromptCard:
    """Memory, a window block and a chunk of up to `tokens` tokens on a device."""

    def __init__(self, device, *, tokens: int) -> None:
        self.device, self.memory = device, Memory(device)
        self.chunk = Chunk(self.memory.buffer("window", WINDOW_DTYPE.itemsize), self.memory, tokens, CONTEXT)

    def run(self, launches: list[Launch], *, rows: int, position: int = 0) -> None:
        """Run launches as a chunk of so many rows."""
        values = np.zeros(1, WINDOW_DTYPE)
        values["rows"], values["position"] = rows, position
        self.device.upload(self.chunk.window.address, values)
        for launch in launches:
            self.device.run(launch)
        self.device.synchronize()

    def read(self, buffer: Buffer, shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
        """What a buffer holds."""
        values = np.empty(shape, dtype)
        self.device.download(buffer.address, values)
        return values


def on_cpu(x: np.ndarray, describe: Callable, *, windows: tuple[int, ...] = ()) -> np.ndarray:
    """x f32 [T, D] through blocks that `describe(backend, rows)` records, in windows of these sizes or in one."""
    backend = CpuBackend(workers=2, max_context=CONTEXT, max_rows=len(x))
    try:
        rows = backend.rows("x", x.shape[1])
        out = describe(backend, rows)
        backend.program.seal()
        backend.prepare()
        results, first = [], 0
        for n in windows or (len(x),):
            rows.array[:n] = x[first:first + n]
            backend.program.run(rows=n, position=first, out_first=0, out_rows=0)
            results.append(out.array[:n * out.per_token].copy())
            first += n
        return np.concatenate(results)
    finally:
        backend.close()

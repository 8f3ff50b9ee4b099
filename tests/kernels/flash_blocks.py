"""Runs one block of the CPU backend alone, window by window, for comparison with flash_reference."""

from contextlib import contextmanager

import numpy as np

from engine.backend.cpu import isa

isa.prepare_numba()  # before numba is imported
from engine.backend.cpu.backend import CpuBackend  # noqa: E402
from engine.backend.cpu.program import allocate  # noqa: E402
from engine.gguf import FORMATS, Tensor  # noqa: E402


def tensor(role: str, values: np.ndarray) -> Tensor:
    """An F32 tensor."""
    held = allocate(values.shape, np.float32)
    held[...] = values
    return Tensor(name=f"{role}.weight", shape=values.shape, format=FORMATS["F32"], n_bytes=held.nbytes, shard=0, offset=0,
                  data=held.view(np.uint8))


def random_weights(seed: int, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """f32 values by role: matrices that keep the variance, vectors around one."""
    rng = np.random.default_rng(seed)
    return {role: (rng.normal(size=shape) / np.sqrt(shape[-1]) if len(shape) > 1 else 1 + 0.2 * rng.normal(size=shape)
                   ).astype(np.float32) for role, shape in shapes.items()}


@contextmanager
def block(record, inputs: dict[str, int], *, context: int = 256, rows: int = 64, workers: int = 2):
    """`run(position, tokens, **inputs)` of what `record(backend, **rows)` records; it returns the outputs' rows.

    `inputs` are widths by name; run copies the arrays in, and the outputs out. The backend is `run.backend`.
    """
    backend = CpuBackend(workers=workers, max_context=context, max_rows=rows)
    held = {name: backend.rows(name, width) for name, width in inputs.items()}
    outputs = record(backend, **held)
    backend.program.seal()
    backend.prepare()

    def run(position: int = 0, **arrays: np.ndarray) -> list[np.ndarray]:
        n = len(next(iter(arrays.values())))
        for name, values in arrays.items():
            held[name].array[:n] = values
        assert backend.program.run(rows=n, position=position, out_first=0, out_rows=0)
        return [getattr(out, "array", out)[:n].copy() for out in outputs]

    run.backend = backend
    try:
        yield run
    finally:
        backend.close()


def windows(n: int, seed: int, most: int) -> list[tuple[int, int]]:
    """Random cuts of n tokens into windows of at most `most`: (start, stop) of each."""
    rng, found, at = np.random.default_rng(seed), [], 0
    while at < n:
        stop = min(n, at + int(rng.integers(1, most + 1)))
        found.append((at, stop))
        at = stop
    return found

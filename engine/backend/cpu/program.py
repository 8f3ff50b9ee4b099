"""The recorder: kernels with their arguments in the order they run, and the memory that they work in.

Recorded once when a model is loaded, then run for every window: what changes from window to window (number of tokens,
position, tokens) is read by the kernels from the window block, so Python touches nothing in between.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

import numpy as np

from engine.backend.cpu.kernel import (
    WINDOW_OUT_FIRST,
    WINDOW_OUT_ROWS,
    WINDOW_POSITION,
    WINDOW_ROWS,
    WINDOW_SLOTS,
    compile_kernel,
)
from engine.backend.cpu.pool import Pool
from engine.errors import Internal

_ALIGNMENT = 64


def allocate(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """A zeroed array that starts on a cache line and has one more line of room behind it."""
    n_bytes = prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(n_bytes + 2 * _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start:start + n_bytes].view(dtype).reshape(shape)


def float_bits(value: float) -> int:
    """A float32 as the integer that an argument slot holds."""
    return int(np.float32(value).view(np.uint32))


@dataclass
class Program:
    """Recorded operations for windows of up to `max_rows` tokens."""

    pool: Pool
    max_rows: int
    window: np.ndarray = field(default_factory=lambda: allocate((WINDOW_SLOTS,), np.int64))
    kept: list[np.ndarray] = field(default_factory=list)  # whatever an address in an argument points to
    named: dict[str, np.ndarray] = field(default_factory=dict)
    rows: list[tuple[Callable, int, int]] = field(default_factory=list)  # kernel, address of its arguments, barrier
    sealed: bool = False
    table: np.ndarray | None = None  # int64 [n, 3], once compiled
    n_bytes: int = 0  # of all memory given out; what was not touched yet is not taken from the system yet

    def memory(self, shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
        """New memory that lives as long as the program."""
        array = allocate(shape, dtype)
        self.n_bytes += array.nbytes
        self.kept.append(array)
        return array

    def scratch(self, name: str, shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
        """Memory shared by all layers under one name, as large as the largest of them needs."""
        n_bytes = prod(shape) * np.dtype(dtype).itemsize
        held = self.named.get(name)
        if held is None or held.nbytes < n_bytes:
            held = self.memory((n_bytes,), np.uint8)
            self.named[name] = held
        return held[:n_bytes].view(dtype).reshape(shape)

    def worker_scratch(self, name: str, n_bytes: int) -> tuple[int, int]:
        """(address, bytes of one worker) of scratch memory that every worker has a piece of."""
        piece = -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
        return self.scratch(name, (self.pool.workers, piece), np.uint8).ctypes.data, piece

    def keep(self, array: np.ndarray) -> int:
        """The address of an array that now lives as long as the program."""
        self.kept.append(array)
        return int(array.ctypes.data)

    def add(self, function: Callable, arguments: dict[int, int], *, barrier: bool = True) -> None:
        """Record a kernel. Without a barrier the next one may start before this one has ended."""
        if self.sealed:
            raise Internal(f"{function.__name__}: the program is complete already")
        slots = self.memory((max(arguments) + 1,), np.int64)
        for index, value in arguments.items():
            slots[index] = value
        self.rows.append((function, slots.ctypes.data, int(barrier)))

    def seal(self) -> None:
        """No more operations. Nothing is compiled yet, so that a description can be weighed, and dropped, at once."""
        self.sealed = True

    def compile(self) -> None:
        """Compile the kernels and build the table, once. The last operation ends with a barrier."""
        if self.table is None:
            table = np.array([(compile_kernel(function).address, *rest) for function, *rest in self.rows], np.int64)
            table[-1, 2] = 1
            self.table, self.counters = table, allocate((len(table), 8), np.int64)

    def run(self, *, rows: int, position: int, out_first: int, out_rows: int) -> bool:
        """Run a window; False if it was cancelled on the way."""
        self.compile()
        self.window[WINDOW_ROWS], self.window[WINDOW_POSITION] = rows, position
        self.window[WINDOW_OUT_FIRST], self.window[WINDOW_OUT_ROWS] = out_first, out_rows
        return self.pool.run(self.table, self.window, self.counters)

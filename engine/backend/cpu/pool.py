"""Runs programs of kernels on a few threads that never hold the GIL.

A program is a table of (kernel address, arguments address, barrier) rows in plain memory. The caller is worker 0; the
others sleep on a futex between programs. Inside a program the workers share the work of a kernel through a counter
each, and meet at barriers. The pool knows nothing of what a kernel does.
"""

import ctypes
import os
import threading
from pathlib import Path

import numpy as np
import psutil
from numba import njit, types

from engine.backend.cpu import atomics, simd

_CACHE_LINE = 64
# byte offsets in the shared block, one cache line each: what one worker writes and others poll
_EPOCH, _ARRIVED, _GENERATION, _CANCEL, _STOP = (i * _CACHE_LINE for i in range(5))
_TABLE, _N_OPS, _WINDOW, _COUNTERS, _N_WORKERS, _SPIN = (6 * _CACHE_LINE + 8 * i for i in range(6))
_SHARED_BYTES = 8 * _CACHE_LINE
_SPINS = 1000
_ABORTED = 1  # low bit of the generation: the last worker to arrive saw a cancel, and all stop together

_FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE, _SYS_FUTEX = 128, 129, 202  # x86-64 Linux
_syscall = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))


@njit(nogil=True, cache=True)
def _sleep_while(address, value):
    """Block while the i32 at `address` is `value`; may return early."""
    _syscall(_SYS_FUTEX, address, _FUTEX_WAIT_PRIVATE, value, 0, 0, 0)


@njit(nogil=True, cache=True)
def _wake_all(address):
    _syscall(_SYS_FUTEX, address, _FUTEX_WAKE_PRIVATE, 1 << 30, 0, 0, 0)


@njit(nogil=True, cache=True)
def _await_change(address, old, spin):
    """Return the i32 at `address` once it is not `old`: spin a little, then sleep."""
    for _ in range(spin):
        new = atomics.atomic_load_i32(address)
        if new != old:
            return new
        atomics.pause()
    new = atomics.atomic_load_i32(address)
    while new == old:
        _sleep_while(address, old)
        new = atomics.atomic_load_i32(address)
    return new


@njit(nogil=True, cache=True)
def _barrier(shared):
    """Wait for all workers. Returns False if the program is to be abandoned, the same to every worker."""
    generation = atomics.atomic_load_i32(shared + _GENERATION)
    if atomics.atomic_add_i32(shared + _ARRIVED, 1) + 1 == simd.load_i64(shared + _N_WORKERS):
        atomics.atomic_store_i32(shared + _ARRIVED, 0)
        new = (generation & ~1) + 2
        if atomics.atomic_load_i32(shared + _CANCEL) != 0:
            new |= _ABORTED
        atomics.atomic_store_i32(shared + _GENERATION, new)
        _wake_all(shared + _GENERATION)
    else:
        new = _await_change(shared + _GENERATION, generation, simd.load_i64(shared + _SPIN))
    return new & _ABORTED == 0


@njit(nogil=True, cache=True)
def _run_ops(shared, worker):
    """One worker's way through the program. Ends behind a barrier, so no worker is inside a kernel afterwards."""
    table, window = simd.load_i64(shared + _TABLE), simd.load_i64(shared + _WINDOW)
    counters = simd.load_i64(shared + _COUNTERS)
    for i in range(simd.load_i64(shared + _N_OPS)):
        row = table + 24 * i
        atomics.call_kernel(simd.load_i64(row), simd.load_i64(row + 8), window, counters + _CACHE_LINE * i, worker)
        if simd.load_i64(row + 16) != 0 and not _barrier(shared):
            return False
    return True


@njit("boolean(int64)", nogil=True, cache=True)  # compiled now: the first request should not wait for it
def _run_program(shared):
    """Worker 0: start the others, take part, return whether the program ran to its end."""
    counters = simd.load_i64(shared + _COUNTERS)
    for i in range(simd.load_i64(shared + _N_OPS)):
        simd.store_i64(counters + _CACHE_LINE * i, 0)
    atomics.atomic_add_i32(shared + _EPOCH, 1)
    _wake_all(shared + _EPOCH)
    return _run_ops(shared, 0)


@njit("void(int64, int64)", nogil=True, cache=True)
def _worker_loop(shared, worker):
    epoch = 0
    while True:
        epoch = _await_change(shared + _EPOCH, epoch, simd.load_i64(shared + _SPIN))
        if atomics.atomic_load_i32(shared + _STOP) != 0:
            return
        _run_ops(shared, worker)


def available_cores() -> list[int]:
    """One logical CPU for each physical core inside the affinity mask, in order."""
    allowed, seen, cores = sorted(os.sched_getaffinity(0)), set(), []
    for cpu in allowed:
        core = _core_of(cpu)
        if core not in seen:
            seen.add(core)
            cores.append(cpu)
    return cores


def _core_of(cpu: int) -> tuple[str, str]:
    folder = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        return (folder / "physical_package_id").read_text().strip(), (folder / "core_id").read_text().strip()
    except OSError:  # no topology in a container: every logical CPU counts
        return "", str(cpu)


class Pool:
    """`workers` threads including the caller's. `pinned` names the CPU of each, or is empty.

    Only one thread may call `run` at a time; `cancel` may come from any thread.
    """

    def __init__(self, workers: int = 0) -> None:
        cores = available_cores()
        self.workers = workers or min(len(cores), psutil.cpu_count(logical=False) or len(cores))
        if not 1 <= self.workers <= 256:
            raise ValueError(f"pool workers: {workers} is not in 1..256")
        self.pinned = cores[:self.workers] if 4 <= self.workers <= len(cores) else []
        memory = np.zeros(_SHARED_BYTES + _CACHE_LINE, np.uint8)
        self._memory = memory
        self._shared = -(-memory.ctypes.data // _CACHE_LINE) * _CACHE_LINE
        self._put(_N_WORKERS, self.workers)
        # A barrier by futex alone costs 25 us on a virtual machine with two cores, one that spins for some 10 us first
        # 0.4 us. With more workers than cores whoever spins keeps a worker from its work.
        self._put(_SPIN, _SPINS if self.workers <= len(cores) else 0)
        self._threads = [threading.Thread(target=self._serve, args=(i,), name=f"pool-{i}", daemon=True)
                         for i in range(1, self.workers)]
        for thread in self._threads:
            thread.start()
        if self.pinned:
            os.sched_setaffinity(0, {self.pinned[0]})
        self._closed = False

    def _serve(self, worker: int) -> None:
        if self.pinned:
            os.sched_setaffinity(0, {self.pinned[worker]})
        _worker_loop(self._shared, worker)

    def _put(self, offset: int, value: int) -> None:
        ctypes.c_int64.from_address(self._shared + offset).value = value

    def run(self, table: np.ndarray, window: np.ndarray, counters: np.ndarray) -> bool:
        """Run a program; table int64 [n, 3], window int64 [·], counters int64 [n, 8]. False if it was cancelled."""
        if self._closed:
            raise RuntimeError("the pool is closed")
        ctypes.c_int32.from_address(self._shared + _CANCEL).value = 0
        for offset, value in ((_TABLE, table.ctypes.data), (_N_OPS, len(table)), (_WINDOW, window.ctypes.data),
                              (_COUNTERS, counters.ctypes.data)):
            self._put(offset, value)
        return bool(_run_program(self._shared))

    def cancel(self) -> None:
        """Make the running program stop at its next barrier; without one running, nothing happens."""
        ctypes.c_int32.from_address(self._shared + _CANCEL).value = 1

    def close(self) -> None:
        """End the worker threads. No program may be running."""
        if self._closed:
            return
        self._closed = True
        ctypes.c_int32.from_address(self._shared + _STOP).value = 1
        ctypes.c_int32.from_address(self._shared + _EPOCH).value += 1
        _wake_all(self._shared + _EPOCH)
        for thread in self._threads:
            thread.join()

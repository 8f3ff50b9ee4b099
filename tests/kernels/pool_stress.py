"""Runs a pool of W workers N times on random programs while another thread cancels: pool_stress.py WORKERS RUNS.

A program is a chain of steps; each reads what an earlier step wrote and adds one, so a worker that is too early, too late,
twice or never at a piece leaves a wrong number. Says how many runs were cancelled; ends with a traceback if one was wrong.
"""

import random
import sys
import threading
import time

import numpy as np

from engine.backend.cpu import isa

isa.prepare_numba()  # before numba is imported
from engine.backend.cpu import atomics, simd  # noqa: E402
from engine.backend.cpu.kernel import compile_kernel, slot, take  # noqa: E402
from engine.backend.cpu.pool import Pool  # noqa: E402
from engine.backend.cpu.program import allocate  # noqa: E402

PIECES, MOST_STEPS = 24, 10
RUNS_A_PROGRAM = 250
_SOURCE, _TARGET, _WORK = range(3)


def add_one(arguments, window, counter, worker):
    """target[i] = source[i + 1] + 1, a piece at a time, each after a little work."""
    while True:
        i = take(counter)
        if i >= PIECES:
            return
        for _ in range(slot(arguments, _WORK)):
            atomics.pause()
        value = simd.load_i64(slot(arguments, _SOURCE) + 8 * ((i + 1) % PIECES))
        simd.store_i64(slot(arguments, _TARGET) + 8 * i, value + 1)


class Chain:
    """A random program. values int64 [steps + 1, PIECES]; row 0 is the input; a step reads a row that a barrier protects."""

    def __init__(self, rng: random.Random) -> None:
        steps = rng.randint(1, MOST_STEPS)
        self.values = allocate((steps + 1, PIECES), np.int64)
        self.arguments = allocate((steps, 3), np.int64)
        self.table, self.counters = np.zeros((steps, 3), np.int64), allocate((steps, 8), np.int64)
        self.barriers = np.array([rng.random() < 0.6 for _ in range(steps)])
        self.barriers[-1] = True
        self.depth = np.zeros(steps + 1, np.int64)
        safe = 0
        for step in range(steps):
            row = self.values[step + 1]
            self.arguments[step] = self.values[safe].ctypes.data, row.ctypes.data, rng.choice([0, 0, 3, 20])
            self.table[step] = compile_kernel(add_one).address, self.arguments[step].ctypes.data, self.barriers[step]
            self.depth[step + 1] = self.depth[safe] + 1
            if self.barriers[step]:
                safe = step + 1
        self.window = allocate((8,), np.int64)

    def run(self, pool: Pool, number: int) -> bool:
        """One run; raises AssertionError unless it was whole, or stopped for all workers behind the same barrier."""
        base = 1000 * number
        self.values[0] = base
        whole = pool.run(self.table, self.window, self.counters)
        done = (self.values[1:] == base + self.depth[1:, None]).all(axis=1)
        stale = (self.values[1:] < base).all(axis=1)
        n = int(done.sum())
        if whole:
            right = n == len(done)
        else:
            right = bool(done[:n].all() and stale[n:].all() and n > 0 and self.barriers[n - 1])
        if not right:
            raise AssertionError(f"run {number}, {'whole' if whole else 'cancelled'}: {self.values.tolist()}")
        return whole


def stress(workers: int, runs: int) -> int:
    """The number of runs that were cancelled."""
    rng, cancelled, stop = random.Random(workers), 0, threading.Event()
    pool = Pool(workers)

    def cancel_now_and_then() -> None:
        mine = random.Random(1)
        while not stop.is_set():
            time.sleep(mine.random() * 1e-3)
            pool.cancel()

    canceller = threading.Thread(target=cancel_now_and_then)
    canceller.start()
    try:
        for number in range(1, runs + 1):
            if number % RUNS_A_PROGRAM == 1:
                chain = Chain(rng)
            cancelled += not chain.run(pool, number)
    finally:
        stop.set()
        canceller.join()
        pool.close()
    return cancelled


if __name__ == "__main__":
    print(stress(int(sys.argv[1]), int(sys.argv[2])))

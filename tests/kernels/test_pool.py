"""The pool of workers: 100,000 random programs and cancels, and what it costs when there is nothing to do."""

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from pool_stress import Chain, stress

from engine.backend.cpu.pool import Pool


@pytest.mark.parametrize(("workers", "runs"), [(1, 10_000), (2, 50_000), (3, 20_000), (4, 20_000)])
def test_every_run_is_whole_or_stopped_for_all_workers_at_once(workers, runs):
    """In a process of its own, so that a pool that hangs is a failure and not the end of the tests."""
    script = Path(__file__).with_name("pool_stress.py")
    root = script.parents[2]
    done = subprocess.run([sys.executable, str(script), str(workers), str(runs)], capture_output=True, text=True,
                          check=False, timeout=300, env=os.environ | {"PYTHONPATH": str(root)}, cwd=root)
    assert done.returncode == 0, done.stderr[-2000:]
    assert runs / 1000 < int(done.stdout) < 0.9 * runs, f"{done.stdout.strip()} of {runs} runs cancelled tests nothing"


@pytest.mark.skipif(os.cpu_count() == 1, reason="two workers hardly ever meet on one core")
def test_stress_notices_a_barrier_that_is_missing(monkeypatch):
    """The test of the test: let every step follow the one before it at once, though it reads what that one wrote."""
    def without_barriers(chain: Chain, rng) -> None:
        make(chain, rng)
        chain.table[:, 2] = 0
        chain.table[-1, 2] = 1

    make = Chain.__init__
    monkeypatch.setattr(Chain, "__init__", without_barriers)
    with pytest.raises(AssertionError, match="run"):
        stress(2, 5000)


def test_an_idle_pool_takes_no_processor_time():
    pool = Pool(4)
    try:
        table, counters = np.zeros((0, 3), np.int64), np.zeros((1, 8), np.int64)
        for _ in range(10):
            assert pool.run(table, np.zeros(8, np.int64), counters)
        time.sleep(0.05)
        before_s = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before_s < 0.05  # three workers that spin would take 1.5 s
    finally:
        pool.close()


def test_closing_ends_the_threads_and_a_closed_pool_says_so():
    before = threading.active_count()
    pool = Pool(3)
    assert threading.active_count() == before + 2
    pool.close()
    pool.close()
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="closed"):
        pool.run(np.zeros((0, 3), np.int64), np.zeros(8, np.int64), np.zeros((1, 8), np.int64))


def test_a_cancel_between_runs_hits_nothing():
    pool = Pool(2)
    try:
        chain = Chain(random.Random(7))
        for number in range(1, 200):
            pool.cancel()
            assert chain.run(pool, number)
    finally:
        pool.close()


@pytest.mark.parametrize("workers", [-1, 257])
def test_absurd_numbers_of_workers_are_refused(workers):
    with pytest.raises(ValueError, match="is not in"):
        Pool(workers)

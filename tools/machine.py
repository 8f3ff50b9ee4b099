"""Facts about this machine for results files, and how much of it others use while something is measured.

A figure taken while someone else computed says nothing; on a shared machine that is the common case. So a measurement waits
for a quiet moment and is weighed by what the other processes (and, on a virtual machine, other guests) took meanwhile.
"""

import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

QUIET = 0.04  # part of all cores that others may use


def machine_facts() -> dict[str, Any]:
    """Processor, cores, memory, versions, commit."""
    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.processor())  # fmt: skip
    packages = ("numpy", "numba", "llvmlite", "gguf")
    return {
        "cpu": model,
        "cores": psutil.cpu_count(logical=False),
        "logical_cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
        "commit": _commit(),
    }


def _commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False,
                          cwd=Path(__file__).parent)  # fmt: skip
    return done.stdout.strip() or "unknown"


class ForeignLoad:
    """What everybody but the measured processes took of all cores, from construction to `share()`."""

    def __init__(self) -> None:
        self._start_s, self._busy_s = time.perf_counter(), _busy_s()

    def share(self, own_s: float) -> float:
        """Part of all cores, given the processor seconds of what was measured."""
        wall_s = time.perf_counter() - self._start_s
        return max(0.0, (_busy_s() - self._busy_s - own_s) / (wall_s * (os.cpu_count() or 1)))


def _busy_s() -> float:
    """Processor seconds that all processes and other guests have taken since the start of the system."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq + times.steal


def wait_until_quiet(*, timeout_s: float = 600.0) -> bool:
    """Sleep until others use hardly anything for two seconds; False if that does not happen in time."""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        load = ForeignLoad()
        time.sleep(2)
        if load.share(0.0) <= QUIET:
            return True
    return False

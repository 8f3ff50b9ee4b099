"""A card that is none: `engine.backend.cuda.device.Device` on the host's memory, with guards around every allocation.

Kernels are compiled by g++ with cuda_on_cpu.h, kept by a digest of the sources. A graph is the list of its launches.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from engine.backend.cuda.device import Pinned
from engine.backend.cuda.launch import KERNELS, Launch
from engine.backend.cuda.toolchain import MAX_REGISTERS, cache_folder, sources_digest

_HEADER = Path(__file__).with_name("cuda_on_cpu.h")
_GUARD_BYTES, _GUARD = 512, 0xA5
_FAILURES = {1: "threads wait for each other for ever", 2: "shared memory was written behind its end", 3: "too many threads"}
_FLAGS = ("-std=c++17", "-O2", "-ffp-contract=off", "-fno-strict-aliasing", "-shared", "-fPIC", "-w", "-DTERRACE_EMULATED")


class EmulatedDevice:
    """See the module. `blocks_backwards` runs the blocks of a grid from the last to the first."""

    name, arch, sm_count = "emulated", "sm_90", 4

    def __init__(self, *, blocks_backwards: bool = False) -> None:
        self._order = int(blocks_backwards)
        self._memory: dict[int, np.ndarray] = {}
        self._sizes: dict[int, tuple[int, int]] = {}  # where in the array the allocation starts, and its bytes
        self._captured: list[Launch] | None = None
        self.launches = 0

    def free_bytes(self) -> int:
        """As much as anybody will ask for."""
        return 1 << 34

    def allocate(self, n_bytes: int) -> int:
        """New zeroed memory between two guards."""
        raw = np.full(n_bytes + 2 * _GUARD_BYTES + 256, _GUARD, np.uint8)
        start = _GUARD_BYTES + -(raw.ctypes.data + _GUARD_BYTES) % 256
        raw[start:start + n_bytes] = 0
        address = raw.ctypes.data + start
        self._memory[address] = raw
        self._sizes[address] = start, n_bytes
        return address

    def free(self, address: int) -> None:
        """Give memory back; its guards are looked at once more."""
        self.check_guards()
        del self._memory[address], self._sizes[address]

    def check_guards(self) -> None:
        """Raise AssertionError if something was written outside of an allocation."""
        for address, raw in self._memory.items():
            start, n_bytes = self._sizes[address]
            if (raw[:start] != _GUARD).any() or (raw[start + n_bytes:] != _GUARD).any():
                raise AssertionError(f"memory around an allocation of {n_bytes} bytes was written")

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Pinned:
        """Host memory."""
        address = self.allocate(prod(shape) * np.dtype(dtype).itemsize)
        start, n_bytes = self._sizes[address]
        return Pinned(self._memory[address][start:start + n_bytes].view(dtype).reshape(shape), address)

    def upload(self, address: int, values: np.ndarray) -> None:
        """Copy in."""
        values = np.ascontiguousarray(values)
        ctypes.memmove(address, values.ctypes.data, values.nbytes)

    def download(self, address: int, values: np.ndarray) -> None:
        """Copy out."""
        ctypes.memmove(values.ctypes.data, address, values.nbytes)

    def fill_zero(self, address: int, n_bytes: int) -> None:
        """Zeros."""
        ctypes.memset(address, 0, n_bytes)

    def load_launch(self, launch: Launch) -> Any:
        """The kernel's function."""
        return getattr(_program(launch.program, launch.defines), launch.kernel)

    def run(self, launch: Launch, *, handle: Any = None, dependent: bool = False) -> None:
        """Run now, or record while capturing."""
        if self._captured is not None:
            launch.packed()
            self._captured.append(launch)
            return
        self.launches += 1
        packed = launch.packed()
        result = (handle or self.load_launch(launch))(
            (ctypes.c_uint32 * 3)(*launch.grid), launch.threads, launch.shared_bytes, self._order,
            ctypes.create_string_buffer(packed, len(packed)))
        if result:
            raise AssertionError(f"{launch.program}.{launch.kernel} {launch.grid}: {_FAILURES[result]}")
        self.check_guards()

    def begin_capture(self) -> None:
        """Record from here on."""
        self._captured = []

    def end_capture(self) -> list[Launch]:
        """What was recorded."""
        launches, self._captured = self._captured, None
        return launches

    def launch_graph(self, graph: list[Launch]) -> None:
        """Run a recording."""
        for launch in graph:
            self.run(launch)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Everything has happened when it was asked for."""
        if not condition():
            raise AssertionError("waits for something that never comes")

    def synchronize(self) -> None:
        """Nothing is under way."""


def missing_compiler() -> str | None:
    """Why kernels cannot be compiled here, or None."""
    return None if shutil.which("g++") else "g++ is not installed"


@cache
def _program(name: str, defines: tuple[tuple[str, str], ...]) -> ctypes.CDLL:
    """A program as a shared library."""
    described = "\0".join([name, repr(defines), sources_digest(name), _HEADER.read_text(), *_FLAGS])
    folder = cache_folder()
    kept = folder / f"{name}-{hashlib.sha256(described.encode()).hexdigest()[:32]}.so"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=folder)
        os.close(handle)
        wanted = [f"-D{key}={value}" for key, value in defines if key != MAX_REGISTERS]
        command = ["g++", *_FLAGS, *wanted, f"-I{KERNELS}", f"-I{_HEADER.parent}", "-x", "c++", str(KERNELS / f"{name}.cu"),
                   "-o", partial]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AssertionError(f"{name}.cu with {dict(defines)} does not compile:\n{done.stderr[:4000]}")
        Path(partial).replace(kept)
    return ctypes.CDLL(str(kept))

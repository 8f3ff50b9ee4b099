"""A card that is none: `engine.backend.cuda.device.Device` on the host's memory. A graph is the list of its launches.

Behind and before every allocation lies memory that nobody may touch; what little lies between holds a pattern that is
looked at after a launch. So a kernel that leaves its buffers is found, in most cases at the very access.
"""

import ctypes
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from engine.backend.cuda.device import Pinned
from engine.backend.cuda.launch import Launch, kernel_fields
from tools.cuda_on_cpu.emulator import KernelFault, Program, load, missing_compiler

__all__ = ["EmulatedDevice", "KernelFault", "missing_compiler"]
_PATTERN = 0xA5
_ALIGNMENT = 16  # of an allocation's end, so that the next page lies directly behind it
_NO_ACCESS, _READ_ONLY = 0, 1  # as mprotect counts


@dataclass(frozen=True)
class _Allocation:
    address: int
    n_bytes: int
    pages: mmap.mmap  # without the first and the last page, which cannot be accessed
    start: int  # where in the pages

    def borders_hold(self) -> bool:
        """Whether what lies between the allocation and its pages' ends has not been written."""
        last, behind = len(self.pages) - mmap.PAGESIZE, self.start + self.n_bytes
        return (self.pages[mmap.PAGESIZE:self.start].count(_PATTERN) == self.start - mmap.PAGESIZE
                and self.pages[behind:last].count(_PATTERN) == last - behind)


class EmulatedDevice:
    """See the module. `order`: blocks, warps and lanes run as they are counted (0), backwards (1) or shuffled by a seed."""

    name, arch, sm_count, l2_bytes = "emulated", "sm_90", 4, 1 << 20

    def __init__(self, *, order: int = 0) -> None:
        self.launches = 0
        self._order = order
        self._allocations: dict[int, _Allocation] = {}
        self._captured: list[tuple[Launch, bool]] | None = None
        self._before: Launch | None = None
        self._mprotect = ctypes.CDLL(None, use_errno=True).mprotect
        self._mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    # --- memory ---------------------------------------------------------------------------------------------------
    def free_bytes(self) -> int:
        """As much as anybody will ask for."""
        return 1 << 34

    def allocate(self, n_bytes: int) -> int:
        """New zeroed memory between two guards."""
        self._not_while_recording("memory is asked for")
        behind = -n_bytes % _ALIGNMENT
        size = -(-(n_bytes + behind) // mmap.PAGESIZE) * mmap.PAGESIZE + 2 * mmap.PAGESIZE
        pages = mmap.mmap(-1, size)
        start = size - mmap.PAGESIZE - behind - n_bytes
        base = np.frombuffer(pages, np.uint8).ctypes.data
        pages[mmap.PAGESIZE:start] = bytes([_PATTERN]) * (start - mmap.PAGESIZE)
        pages[start + n_bytes:size - mmap.PAGESIZE] = bytes([_PATTERN]) * behind
        for guard in (base, base + size - mmap.PAGESIZE):
            if self._mprotect(guard, mmap.PAGESIZE, _NO_ACCESS):
                raise OSError(ctypes.get_errno(), "mprotect")
        self._allocations[base + start] = _Allocation(base + start, n_bytes, pages, start)
        return base + start

    def free(self, address: int) -> None:
        """Give memory back; its borders are looked at once more."""
        self._check(self._allocations.pop(address))

    def check_guards(self) -> None:
        """Raise KernelFault if something was written outside of an allocation."""
        for allocation in self._allocations.values():
            self._check(allocation)

    def _check(self, allocation: _Allocation) -> None:
        if not allocation.borders_hold():
            raise KernelFault(f"memory around an allocation of {allocation.n_bytes} bytes was written")

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Pinned:
        """Host memory."""
        found = self._allocations[self.allocate(prod(shape) * np.dtype(dtype).itemsize)]
        return Pinned(np.frombuffer(found.pages, dtype, prod(shape), found.start).reshape(shape), found.address)

    def upload(self, address: int, values: np.ndarray) -> None:
        """Copy in."""
        self._not_while_recording("an upload")
        values = np.ascontiguousarray(values)
        self._must_hold(address, values.nbytes)
        ctypes.memmove(address, values.ctypes.data, values.nbytes)

    def download(self, address: int, values: np.ndarray) -> None:
        """Copy out, into a contiguous array."""
        self._not_while_recording("a download")
        self._must_hold(address, values.nbytes)
        if not values.flags.c_contiguous:
            raise KernelFault("a download into an array that is not contiguous")
        ctypes.memmove(values.ctypes.data, address, values.nbytes)

    def fill_zero(self, address: int, n_bytes: int) -> None:
        """Zeros."""
        self._must_hold(address, n_bytes)
        ctypes.memset(address, 0, n_bytes)

    def _must_hold(self, address: int, n_bytes: int) -> None:
        if not any(found.address <= address and address + n_bytes <= found.address + found.n_bytes
                   for found in self._allocations.values()):
            raise KernelFault(f"{n_bytes} bytes {self.place_of(address)} are copied")

    def place_of(self, address: int) -> str:
        """An address in words."""
        for found in self._allocations.values():
            if found.address - mmap.PAGESIZE <= address < found.address + found.n_bytes + 2 * mmap.PAGESIZE:
                return f"at byte {address - found.address} of an allocation of {found.n_bytes}"
        return f"at {address:#x}"

    def _not_while_recording(self, what: str) -> None:
        if self._captured is not None:
            raise KernelFault(f"{what} while a graph is recorded")

    # --- kernels --------------------------------------------------------------------------------------------------
    def load_launch(self, launch: Launch) -> Program:
        """The launch's program."""
        return load(launch.program, launch.defines)

    def run(self, launch: Launch, *, handle: Program | None = None, dependent: bool = False) -> None:
        """Run now, or record while capturing."""
        packed = launch.packed()
        if self._captured is not None:
            self._captured.append((launch, dependent))
            return
        self.launches += 1
        found = (handle or self.load_launch(launch)).run(
            launch.kernel, launch.grid, launch.threads, launch.shared_bytes, packed, seed=self._order, dependent=dependent,
            closed=self._used_before() if dependent else ())
        self._before = launch
        if found is not None:
            words, address = found
            place = f" ({self.place_of(address)})" if address else ""
            raise KernelFault(f"{launch.program}.{launch.kernel} {launch.grid}: {words}{place}")
        for address in {getattr(value, "buffer", value).address for value in launch.arguments.values()
                        if hasattr(value, "address")} & self._allocations.keys():
            if not self._allocations[address].borders_hold():
                raise KernelFault(f"{launch.program}.{launch.kernel} {launch.grid}: memory beside an allocation of "
                                  f"{self._allocations[address].n_bytes} bytes was written")

    def _used_before(self) -> list[tuple[int, int, int]]:
        """Pages that the launch before this one reads, which nobody may write, and those that it writes."""
        if self._before is None:
            return []
        kinds = dict(kernel_fields(self._before.program)[self._before.kernel])
        allowed: dict[int, int] = {}
        for name, value in self._before.arguments.items():
            address = getattr(getattr(value, "buffer", value), "address", None)
            if address in self._allocations:
                allowed[address] = min(allowed.get(address, _READ_ONLY), _READ_ONLY if kinds[name] == "source" else _NO_ACCESS)
        return [(address - found.start + mmap.PAGESIZE, len(found.pages) - 2 * mmap.PAGESIZE, protection)
                for address, protection in allowed.items() for found in (self._allocations[address],)]

    def begin_capture(self) -> None:
        """Record from here on."""
        self._captured = []

    def end_capture(self) -> list[tuple[Launch, bool]]:
        """What was recorded."""
        launches, self._captured = self._captured, None
        return launches

    def launch_graph(self, graph: list[tuple[Launch, bool]]) -> None:
        """Run a recording."""
        for launch, dependent in graph:
            self.run(launch, dependent=dependent)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Everything has happened when it was asked for."""
        if not condition():
            raise KernelFault("waits for something that never comes")

    def synchronize(self) -> None:
        """Nothing is under way."""

"""Processor, memory and graphics cards, as far as this machine tells. What cannot be read is None, never 0.

Readings take a few milliseconds where a graphics card answers, so they belong on a worker thread. Graphics cards are
read through NVIDIA's library if its Python package is installed.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import msgspec
import psutil


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """One graphics card now."""

    index: int
    name: str
    memory_used_mib: int
    memory_total_mib: int
    load: float | None  # 0..1
    temperature_c: int | None
    power_w: float | None
    engine_mib: int | None  # of the engine's process


class MachineReading(msgspec.Struct, frozen=True, kw_only=True):
    """The machine now."""

    cpu: float | None  # 0..1 of all cores since the reading before
    cores: int
    ram_used_mib: int
    ram_total_mib: int
    gateway_rss_mib: int
    engine_rss_mib: int | None
    engine_cpu: float | None  # 0..1 of all cores
    engine_read_bytes: int | None  # from storage, since it began
    gpus: tuple[GpuReading, ...] | None  # None: no library or no driver to ask


class Machine:
    """Reads; keeps what is needed for differences. Used by one thread at a time."""

    def __init__(self) -> None:
        self._cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._own = psutil.Process()
        self._engine: psutil.Process | None = None
        self._nvml = _open_nvml()
        self._cpu_s = _cpu_seconds()  # psutil's own differences are kept apart for every thread

    def read(self, engine_pid: int | None) -> MachineReading:
        """Everything at once."""
        memory = psutil.virtual_memory()
        before, self._cpu_s = self._cpu_s, _cpu_seconds()
        busy_s, all_s = self._cpu_s[0] - before[0], self._cpu_s[1] - before[1]
        rss_mib, cpu, read_bytes = self._read_engine(engine_pid)
        return MachineReading(
            cpu=round(min(max(busy_s / all_s, 0.0), 1.0), 4) if all_s > 0 else None,
            cores=self._cores,
            ram_used_mib=(memory.total - memory.available) >> 20,
            ram_total_mib=memory.total >> 20,
            gateway_rss_mib=self._own.memory_info().rss >> 20,
            engine_rss_mib=rss_mib,
            engine_cpu=cpu,
            engine_read_bytes=read_bytes,
            gpus=self._read_gpus(engine_pid),
        )

    def gpu_mib_of(self, pid: int) -> int | None:
        """Memory that a process holds on all cards; None if there is no card to ask."""
        if self._nvml is None:
            return None
        return sum(_held_mib(self._nvml, handle, pid) or 0 for handle in _handles(self._nvml))

    def _read_engine(self, pid: int | None) -> tuple[int | None, float | None, int | None]:
        try:
            if pid is None:
                return None, None, None
            if self._engine is None or self._engine.pid != pid:
                self._engine = psutil.Process(pid)
            with self._engine.oneshot():
                rss_mib = self._engine.memory_info().rss >> 20
                cpu = round(self._engine.cpu_percent() / 100 / (psutil.cpu_count() or 1), 4)
                return rss_mib, cpu, _read_bytes(self._engine)
        except psutil.Error:  # it has just ended
            self._engine = None
            return None, None, None

    def _read_gpus(self, engine_pid: int | None) -> tuple[GpuReading, ...] | None:
        nvml = self._nvml
        if nvml is None:
            return None
        return tuple(_read_gpu(nvml, index, handle, engine_pid) for index, handle in enumerate(_handles(nvml)))


def _cpu_seconds() -> tuple[float, float]:
    """Busy and all processor seconds since the system began."""
    times = psutil.cpu_times()
    idle_s = times.idle + getattr(times, "iowait", 0.0)
    # The time of guests is in that of their hosts' users already.
    all_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return all_s - idle_s, all_s


def _read_bytes(process: psutil.Process) -> int | None:
    try:
        return int(process.io_counters().read_bytes)
    except (psutil.AccessDenied, AttributeError):  # other systems, hardened kernels
        return None


def _open_nvml() -> Any | None:
    """NVIDIA's library, or None where there is no package, no driver or no card."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # the package has its own errors, and the loader others
        return None
    return pynvml


def _handles(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def _read_gpu(nvml: Any, index: int, handle: Any, engine_pid: int | None) -> GpuReading:
    name = nvml.nvmlDeviceGetName(handle)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    load = _ask(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    power_mw = _ask(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    return GpuReading(
        index=index,
        name=name.decode() if isinstance(name, bytes) else str(name),
        memory_used_mib=int(memory.used) >> 20,
        memory_total_mib=int(memory.total) >> 20,
        load=None if load is None else load / 100,
        temperature_c=_ask(nvml, lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
        power_w=None if power_mw is None else power_mw / 1000,
        engine_mib=None if engine_pid is None else _held_mib(nvml, handle, engine_pid),
    )


def _held_mib(nvml: Any, handle: Any, pid: int) -> int | None:
    """None: the driver does not say (containers often see no process ids)."""
    processes = _ask(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    used = [process.usedGpuMemory for process in processes or () if process.pid == pid]
    return None if not used or used[0] is None else int(used[0]) >> 20


def _ask(nvml: Any, question: Any) -> Any | None:
    """Not every card answers every question."""
    with contextlib.suppress(nvml.NVMLError):
        return question()
    return None

"""What is left when an engine has ended: its processes, its ports, its memory on graphics cards.

A successor is started only behind this, so that it does not race for the memory of the dead. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable

import msgspec
import psutil

GpuMemoryOf = Callable[[int], Awaitable[int | None]]  # process id to MiB on all cards, None = cannot be known

_PATIENCE_S = 5.0  # a driver may take a moment to take memory back
_LOOK_EVERY_S = 0.05


class Possessions(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine held while it lived."""

    ports: tuple[int, ...]
    gpu_mib: int | None


class Aftermath(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it is all given back; None = not known, or there was nothing to give back."""

    process_gone: bool
    ports_closed: bool | None
    gpu_released: bool | None

    def __str__(self) -> str:
        words = {True: "yes", False: "no", None: "unknown"}
        ports = "none were open" if self.ports_closed is None else words[self.ports_closed]
        gpu = words[self.gpu_released]
        return f"process gone: {words[self.process_gone]}, ports closed: {ports}, GPU memory released: {gpu}"


async def possessions(pid: int, gpu_memory_of: GpuMemoryOf) -> Possessions:
    """Note what a living engine holds."""
    ports: tuple[int, ...] = ()
    with contextlib.suppress(psutil.Error):
        connections = psutil.Process(pid).net_connections(kind="tcp")
        ports = tuple(sorted({c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}))
    return Possessions(ports=ports, gpu_mib=await gpu_memory_of(pid) or None)


async def clear_up(pid: int, held: Possessions | None, gpu_memory_of: GpuMemoryOf) -> Aftermath:
    """End what the engine `pid` left running in its group, wait for what it held, and say how that went."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    end_s = time.monotonic() + _PATIENCE_S
    while True:
        ports = held.ports if held is not None else ()
        left_mib = await gpu_memory_of(pid) if held is not None and held.gpu_mib is not None else None
        aftermath = Aftermath(
            process_gone=not _group_lives(pid),
            ports_closed=not any(map(port_answers, ports)) if ports else None,
            gpu_released=None if left_mib is None else left_mib == 0,
        )
        done = aftermath.process_gone and aftermath.ports_closed is not False and aftermath.gpu_released is not False
        if done or time.monotonic() > end_s:
            return aftermath
        await asyncio.sleep(_LOOK_EVERY_S)


def _group_lives(group: int) -> bool:
    """Whether a process of this group still runs; a zombie that nobody has collected does not."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return any(_is_of(process, group) for process in psutil.process_iter())


def _is_of(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ProcessLookupError, PermissionError):
        return False


def port_answers(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0

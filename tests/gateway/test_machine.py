"""Readings of the machine, with and without a graphics card to ask; what an ended engine leaves behind."""

import asyncio
import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from gateway.aftermath import Possessions, clear_up, possessions
from gateway.monitor.machine import Machine


class FakeNvml:
    """One card; it does not tell its power."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self, held: dict[int, int]) -> None:
        self.held = held

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "card",
            "nvmlDeviceGetName": b"Some card",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=3 << 30, total=8 << 30),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=25),
            "nvmlDeviceGetTemperature": 51,
            "nvmlDeviceGetComputeRunningProcesses": [
                SimpleNamespace(pid=pid, usedGpuMemory=mib << 20) for pid, mib in self.held.items()
            ],
        }

        def answer(*_: Any) -> Any:
            if name not in answers:
                raise self.NVMLError
            return answers[name]

        return answer


@pytest.fixture
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)


def test_without_a_card_nothing_is_claimed(no_card: None) -> None:
    machine = Machine()
    reading = machine.read(None)
    assert reading.gpus is None
    assert machine.gpu_mib_of(1) is None
    assert (reading.engine_rss_mib, reading.engine_cpu) == (None, None)
    assert 0 < reading.ram_used_mib < reading.ram_total_mib
    assert reading.gateway_rss_mib > 0


def test_a_living_and_a_dead_engine(no_card: None) -> None:
    machine = Machine()
    assert machine.read(os.getpid()).engine_rss_mib
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert machine.read(child.pid).engine_rss_mib is None


def test_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml({os.getpid(): 700}))
    machine = Machine()
    (card,) = machine.read(os.getpid()).gpus or ()
    assert (card.name, card.memory_used_mib, card.memory_total_mib) == ("Some card", 3072, 8192)
    assert (card.load, card.temperature_c, card.power_w, card.engine_mib) == (0.25, 51, None, 700)
    assert machine.gpu_mib_of(1) == 0


def start_with_port() -> tuple[subprocess.Popen, int]:
    code = (
        "import socket, subprocess, sys, time; s = socket.create_server(('127.0.0.1', 0)); "
        "print(s.getsockname()[1], flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_nothing_is_left_of_an_engine() -> None:
    async def scenario() -> None:
        process, port = start_with_port()
        mib = [300]

        async def gpu_memory_of(_: int) -> int | None:
            return mib[0]

        held = await possessions(process.pid, gpu_memory_of)
        assert held == Possessions(ports=(port,), gpu_mib=300)
        asyncio.get_running_loop().call_later(0.2, mib.__setitem__, 0, 0)  # the driver takes its time
        aftermath = await clear_up(process.pid, held, gpu_memory_of)
        assert str(aftermath) == "process gone: yes, ports closed: yes, GPU memory released: yes"
        process.wait()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=2)

    asyncio.run(scenario())


def test_what_an_engine_started_is_ended_too() -> None:
    async def unknown(_: int) -> int | None:
        return None

    code = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); print(p.pid)"
    engine = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert engine.stdout is not None
    child = int(engine.stdout.readline())
    engine.wait()
    assert psutil.pid_exists(child)
    aftermath = asyncio.run(clear_up(engine.pid, None, unknown))
    assert str(aftermath) == "process gone: yes, ports closed: none were open, GPU memory released: unknown"
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE

"""A gateway as it runs in production, started for a measurement: `python -m gateway` on a free port, and its end.

Its log goes to a file, so that nobody has to read a pipe; requests are made on sockets by whoever measures.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packs.gguf_file import write_gguf
from tools.small_vocabulary import vocabulary_metadata

ROOT = Path(__file__).parents[1]


class GatewayProcess:
    """A running gateway."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, port: int) -> None:
        self.process = process
        self.log = log
        self.port = port

    def ask(self, method: str, path: str, body: Any = None, *, timeout_s: float = 60.0) -> tuple[int, bytes]:
        """One request on a connection of its own: status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def status(self) -> dict[str, Any]:
        """GET /v1/status."""
        return json.loads(self.ask("GET", "/v1/status")[1])

    def wait_ready(self, timeout_s: float = 120.0) -> None:
        """Until the engine takes requests."""
        end_s = time.monotonic() + timeout_s
        while True:
            try:
                if self.ask("GET", "/health", timeout_s=5)[0] == 200:
                    return
            except OSError:
                pass
            if time.monotonic() > end_s or self.process.poll() is not None:
                raise TimeoutError(f"the gateway is not ready: {self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def engine_pids(self) -> list[int]:
        """Process ids of all engines so far, the youngest last."""
        return [int(pid) for pid in re.findall(r"engine \d+ started, process (\d+)", self.log.read_text())]


@contextmanager
def running(
    directory: Path,
    flags: Sequence[str],
    *,
    engine: str | None = None,
    model: Path | None = None,
    log: Path | None = None,
) -> Iterator[GatewayProcess]:
    """Start one. `engine` is a command in place of the real engine; without a model one without tensors is made for it."""
    log = directory / "gateway.log" if log is None else log
    if model is None:
        model = directory / "vocabulary.gguf"
        write_gguf(model, "llama", metadata={"general.name": "letters", **vocabulary_metadata()}, tensors={})
    command = [sys.executable, "-m", "gateway", "--port", "0", "--model", str(model), *flags]
    if engine is not None:
        command += ["--engine-command", engine]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, cwd=directory, env=environment)
    try:
        banner = process.stdout.readline().decode() if process.stdout is not None else ""
        found = re.search(r"http://[^:]+:(\d+)", banner)
        if found is None:
            raise RuntimeError(f"the gateway did not start: {log.read_text()[-2000:]}")
        yield GatewayProcess(process, log, int(found.group(1)))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()

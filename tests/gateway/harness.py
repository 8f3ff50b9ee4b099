"""Runs the gateway as it is run in production: `python -m gateway` as a process, talked to over real sockets."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

REPOSITORY = Path(__file__).parents[2]
FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")


@dataclass
class Reply:
    """A whole HTTP response."""

    status_code: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


class GatewayProcess:
    """A running gateway and, if it drives the fake engine, the script that the engine plays."""

    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self.process = process
        self.directory = directory
        self.log: list[str] = []
        self._log_reader = threading.Thread(target=self._read_log, daemon=True)
        self._log_reader.start()
        line = process.stdout.readline() if process.stdout else ""
        found = re.search(r"http://\S+", line)
        if found is None:
            process.wait(10)
            self._log_reader.join(5)
            raise AssertionError(f"the gateway did not start: {line!r} {self.log}")
        self.banner = line.strip()
        self.url = found.group()

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 0

    def _read_log(self) -> None:
        for line in self.process.stderr or ():
            self.log.append(line.rstrip())

    def play(self, *actions: list, start: list | None = None) -> None:
        """What the fake engine does for the next requests, and what it says at its next start."""
        script = {"request": list(actions), "start": start or []}
        temporary = self.directory / "script.new"
        temporary.write_text(json.dumps(script))
        temporary.replace(self.directory / "script.json")

    def received(self) -> list[str]:
        """The lines that the fake engine has got, pings aside."""
        try:
            lines = (self.directory / "received").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [line.partition(" ")[2] for line in lines]

    def request(
        self, method: str, path: str, *, body: bytes | None = None, json_body: Any = None, headers: Any = None
    ) -> Reply:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection(*self.address, timeout=20)
        try:
            data = json.dumps(json_body).encode() if json_body is not None else body
            connection.request(method, path, body=data, headers=headers or {})
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())
        finally:
            connection.close()

    def chat(self, *messages: dict | str, **fields: Any) -> Reply:
        """POST /v1/chat/completions."""
        history = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages or ("hi",)]
        return self.request("POST", "/v1/chat/completions", json_body={"messages": history, **fields})

    def events(self, *messages: dict | str, **fields: Any) -> list[dict]:
        """The events of a streamed chat, [DONE] checked and left out."""
        response = self.chat(*messages, stream=True, **fields)
        assert response.status_code == 200, response.text
        data = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
        assert data[-1] == "[DONE]"
        return [json.loads(item) for item in data[:-1]]

    def open_chat(self, **fields: Any) -> socket.socket:
        """A raw connection that has sent a chat request and read nothing."""
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connection = socket.create_connection(self.address, timeout=20)
        connection.sendall(head.encode() + body)
        return connection

    def wait_ready(self, timeout_s: float = 20) -> None:
        wait_until(lambda: self.request("GET", "/health").status_code == 200, timeout_s)

    def engine_pid(self) -> int:
        """The process id of the youngest engine, from the gateway's log."""
        wait_until(self._engine_pids)
        return self._engine_pids()[-1]

    def _engine_pids(self) -> list[int]:
        found = [re.search(r"engine \d+ started, process (\d+)", line) for line in list(self.log)]
        return [int(match.group(1)) for match in found if match]

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 6) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout_s)


@contextmanager
def running_gateway(directory: Path, *flags: str, model: Path, fake: bool = True) -> Iterator[GatewayProcess]:
    """Start a gateway on a free port; it is gone at the end, with its engine."""
    command = [sys.executable, "-m", "gateway", "--port", "0", "--model", str(model), *flags]
    if fake:
        command += ["--engine-command", f"{sys.executable} {FAKE_ENGINE} {directory}"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=directory, env=environment
    )
    gateway: GatewayProcess | None = None
    try:
        gateway = GatewayProcess(process, directory)
        yield gateway
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(8)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout:
            process.stdout.close()


def wait_until(condition: Any, timeout_s: float = 10) -> None:
    """Poll until a condition holds; the timeout is for a broken program, not a measurement."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.02)


def process_gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True

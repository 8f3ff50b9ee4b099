"""Clients that are slow, large, many or malformed; a server that stops; and a log that keeps what it hears to itself."""

import http.client
import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.config import ConfigError, GatewayConfig, parse_arguments
from gateway.logs import Formatter
from gateway.security import Gatekeeper
from tests.gateway.harness import FAKE_ENGINE, REPOSITORY, GatewayProcess, wait_until

Start = Callable[..., GatewayProcess]

SECRET = "SECRETWORD"
CHAT = "/v1/chat/completions"


def raw(gateway: GatewayProcess, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """Send pieces, and read until the server closes or answers."""
    with socket.create_connection(gateway.address, timeout=15) as connection:
        for piece in pieces:
            try:
                connection.sendall(piece)
            except ConnectionError:
                break
            time.sleep(pause_s)
        try:
            return connection.recv(65536)
        except ConnectionResetError:
            return b""


def head(path: str = CHAT, **headers: object) -> bytes:
    fields = (f"{name.replace('_', '-')}: {value}" for name, value in headers.items())
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", *fields]).encode() + b"\r\n\r\n"


@pytest.fixture
def impatient(start_gateway: Start) -> GatewayProcess:
    gateway = start_gateway("--client-timeout", "0.5")
    gateway.wait_ready()
    return gateway


# ---- slow


def test_a_head_that_never_ends_is_cut_off(impatient: GatewayProcess) -> None:
    slowly = [b"POST /v1/chat/completions HTTP/1.1\r\n", *[f"X-{n}: y\r\n".encode() for n in range(30)]]
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(raw, impatient, *slowly, pause_s=0.1)
        assert impatient.chat("q").status_code == 200  # others are served meanwhile
        assert slow.result() == b""


def test_a_connection_that_says_nothing_is_closed(impatient: GatewayProcess) -> None:
    assert raw(impatient) == b""


def test_a_kept_connection_may_not_dawdle_either(impatient: GatewayProcess) -> None:
    with socket.create_connection(impatient.address, timeout=15) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /health HTT")
        assert connection.recv(65536) == b""


@pytest.mark.parametrize(("path", "shape"), [(CHAT, "request_timeout"), ("/v1/messages", '"type":"error"')])
def test_a_body_that_does_not_come_is_408(impatient: GatewayProcess, path: str, shape: str) -> None:
    answer = raw(impatient, head(path, Content_Length=500) + b'{"messages"')
    assert answer.startswith(b"HTTP/1.1 408")
    assert shape in answer.decode()
    assert impatient.chat("q").status_code == 200


def test_a_long_reply_is_not_a_slow_client(impatient: GatewayProcess) -> None:
    impatient.play(["text", "a", 0], ["sleep", 1.5], ["text", "b", 0], ["done", "stop"])
    assert [c["delta"].get("content") for e in impatient.events("q") for c in e["choices"]] == ["a", "b", None]


# ---- large


@pytest.mark.parametrize(
    ("path", "size", "shape"),
    [
        (CHAT, (32 << 20) + 1, {"error": {"code": "request_too_large"}}),
        ("/v1/messages", (32 << 20) + 1, {"type": "error"}),
        ("/v1/engine/unload", (64 << 10) + 1, {"error": {"code": "request_too_large"}}),
    ],
)
def test_a_body_over_its_api_s_limit_is_refused_unread(gateway: GatewayProcess, path: str, size: int, shape: dict) -> None:
    answer = raw(gateway, head(path, Content_Length=size))
    assert answer.startswith(b"HTTP/1.1 413")
    body = json.loads(answer.partition(b"\r\n\r\n")[2])
    for key, value in shape.items():
        assert body[key] == value or value.items() <= body[key].items()


def test_a_body_of_unknown_length_is_bounded_too(gateway: GatewayProcess) -> None:
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    answer = raw(gateway, head("/v1/engine/unload", Transfer_Encoding="chunked"), piece, piece, b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413")
    assert gateway.request("GET", "/health").status_code == 200


def test_a_body_of_more_than_a_mebibyte_is_served(start_gateway: Start) -> None:
    gateway = start_gateway(script=json.dumps({"context": 3_000_000}))
    gateway.wait_ready()
    assert gateway.chat("q" * 1_300_000).status_code == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 9000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(500)) + b"\r\n",
        b"NONSENSE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50),
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["line", "header", "headers", "nonsense", "tls", "negative length", "two lengths"],
)
def test_a_head_that_cannot_be_read_is_400(gateway: GatewayProcess, request_bytes: bytes) -> None:
    assert b" 400 Bad Request" in raw(gateway, request_bytes).partition(b"\r\n")[0]
    assert gateway.chat("q").status_code == 200


# ---- many


def test_too_many_at_once_are_refused_before_their_bodies_are_read(start_gateway: Start) -> None:
    gateway = start_gateway("--max-queue", "0")
    gateway.wait_ready()
    waiting = []
    for _ in range(64):
        connection = socket.create_connection(gateway.address, timeout=15)
        connection.sendall(head(Content_Length=500) + b"{")
        waiting.append(connection)
    wait_until(lambda: gateway.chat("q").status_code == 503)
    assert gateway.request("GET", "/health").status_code == 200
    for connection in waiting:
        connection.close()
    wait_until(lambda: gateway.chat("q").status_code == 200)


# ---- the end


def test_a_stop_ends_streams_and_queued_requests_with_an_error(start_gateway: Start) -> None:
    gateway = start_gateway()
    gateway.wait_ready()
    gateway.play(["text", "a", 0], ["sleep", 60], ["done", "stop"])
    with ThreadPoolExecutor(3) as pool:
        active = pool.submit(gateway.events, "q")
        wait_until(lambda: len(gateway.received()) == 1)
        queued = [pool.submit(gateway.chat, "q", stream=stream) for stream in (False, True)]
        wait_until(lambda: gateway.request("GET", "/health").json()["queued"] == 2)
        assert gateway.stop(timeout_s=6) == 0
        assert active.result()[-1]["error"]["message"] == "the server is stopping"  # and [DONE] behind it
        for future in queued:
            assert (future.result().status_code, "stopping" in future.result().text) == (503, True)
    wait_until(lambda: any(re.search(r"port \d+ closed: yes", line) for line in gateway.log))
    assert any("process gone: yes" in line for line in gateway.log)


# ---- keys and the network


@pytest.mark.parametrize("key", ["", " ", " k", "k "])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="--api-key"):
        parse_arguments(["--api-key", key])


@pytest.mark.parametrize(("word", "value"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_a_setting_that_is_true_or_false(word: str, value: bool) -> None:
    assert parse_arguments(["--log-text", word]).log_text is value


def test_a_setting_that_is_neither() -> None:
    with pytest.raises(ConfigError, match="--log-text: expected true or false, got 'maybe'"):
        parse_arguments(["--log-text", "maybe"])


def test_either_header_may_have_the_key() -> None:
    keeper = Gatekeeper(GatewayConfig(api_key="k"))
    keeper.check("POST", CHAT, {"Authorization": "Bearer other", "X-Api-Key": "k"})
    keeper.check("POST", CHAT, {"Authorization": "Bearer k", "X-Api-Key": "other"})


@pytest.mark.parametrize(
    ("host", "key", "is_open"),
    [
        ("127.0.0.1", None, False),
        ("localhost", None, False),
        ("::1", None, False),
        ("0.0.0.0", None, True),
        ("0.0.0.0", "k", False),
    ],
)
def test_a_server_that_is_open_to_the_network_is_noticed(host: str, key: str | None, is_open: bool) -> None:
    assert Gatekeeper(GatewayConfig(host=host, api_key=key)).is_open_to_others is is_open


def test_only_this_machine_unless_asked(gateway: GatewayProcess, start_gateway: Start) -> None:
    assert gateway.address[0] == "127.0.0.1"
    opened = start_gateway("--host", "0.0.0.0")
    wait_until(lambda: any("--api-key closes it" in line for line in opened.log))


def test_answers_say_that_they_are_what_they_are(gateway: GatewayProcess) -> None:
    for path in ("/", "/health", "/v1/status"):
        headers = gateway.request("GET", path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "aiohttp" not in headers["Server"]
    policy = gateway.request("GET", "/").headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


# ---- the log


def test_a_trace_has_no_message() -> None:
    def fail() -> None:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise ValueError(f"cannot read {SECRET}") from error

    for with_text in (False, True):
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        handler.setFormatter(Formatter(with_text=with_text))
        logger = logging.Logger("test")
        logger.addHandler(handler)
        try:
            fail()
        except ValueError:
            logger.exception("it failed")
        assert "it failed" in stream.getvalue()
        assert "KeyError" in stream.getvalue()
        assert "in fail" in stream.getvalue()
        assert (SECRET in stream.getvalue()) is with_text


def test_no_word_of_a_request_is_logged(start_gateway: Start) -> None:
    gateway = start_gateway()
    gateway.wait_ready()
    tools = [{"type": "function", "function": {"name": SECRET, "parameters": {}}}]
    gateway.play(["line", f"HELLO {SECRET}"], ["text", SECRET, 0], ["done", "stop"])
    gateway.chat(SECRET)
    gateway.chat(SECRET, stream=True)
    gateway.chat(SECRET, tools=tools)
    gateway.chat({"role": SECRET, "content": SECRET})
    gateway.chat(SECRET, stop=[SECRET], user=SECRET, temperature=SECRET)
    gateway.request("POST", CHAT, body=f'{{"messages": "{SECRET}'.encode())
    gateway.request("POST", f"/v1/{SECRET}", json_body={"x": SECRET})
    gateway.request("GET", "/health", headers={"Authorization": f"Bearer {SECRET}"})
    raw(gateway, f"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: {SECRET * 1000}\r\n\r\n".encode())
    raw(gateway, f"{SECRET}\r\n\r\n".encode())
    gateway.play(["text", SECRET, 0], ["line", f"T {SECRET}"], ["sleep", 9], ["done", "stop"])
    gateway.chat(SECRET)
    gateway.play(["text", SECRET, 0], ["crash", 3])
    gateway.chat(SECRET, stream=True)
    assert gateway.stop() == 0
    assert len(gateway.log) > 5
    assert SECRET not in "\n".join(gateway.log)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_behind_the_log_costs_lines_only(tmp_path: Path, model_file: Path) -> None:
    (tmp_path / "script.json").write_text(json.dumps({"request": [["stderr", 100_000], ["text", "ok", 0], ["done", "stop"]]}))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    engine = f"{sys.executable} {FAKE_ENGINE} {tmp_path}"
    command = [sys.executable, "-m", "gateway", "--port", str(port), "--model", str(model_file), "--engine-command", engine]
    with Path("/dev/full").open("w") as full:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        process = subprocess.Popen(command, stdout=full, stderr=full, cwd=tmp_path, env=environment)
    try:

        def ask() -> int:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            try:
                connection.request("POST", CHAT, json.dumps({"messages": [{"role": "user", "content": "q"}]}))
                return connection.getresponse().status
            except ConnectionError:
                return 0
            finally:
                connection.close()

        wait_until(lambda: ask() == 200, 20)
        assert [ask() for _ in range(3)] == [200] * 3
        process.terminate()
        assert process.wait(8) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()

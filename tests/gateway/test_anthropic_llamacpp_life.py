"""Clients of the messages and completion APIs that go away, come in crowds, or meet an engine that dies."""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.gateway.harness import GatewayProcess, wait_until

HALVES = [["progress", 1, 9], ["text", "abc", 0], ["sleep", 60], ["text", "never", 0], ["done", "stop"]]
BODIES: dict[str, dict[str, Any]] = {
    "/completion": {"prompt": "hi"},
    "/v1/messages": {"max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]},
}
PATHS = list(BODIES)


def text_of(path: str, body: Any) -> str:
    return body["content"] if path == "/completion" else "".join(block["text"] for block in body["content"])


def leave(gateway: GatewayProcess, path: str, *, streamed: bool, when: Callable[[], bool]) -> None:
    """Send a request, and close the connection when the condition holds."""
    body = json.dumps({**BODIES[path], "stream": streamed}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(gateway.address, timeout=20) as connection:
        connection.sendall(head.encode() + body)
        wait_until(when)


def lines(gateway: GatewayProcess, verb: str) -> list[str]:
    return [line for line in gateway.received() if line.startswith(verb)]


@pytest.fixture
def busy(gateway: GatewayProcess) -> Iterator[GatewayProcess]:
    """A gateway that must be idle and right afterwards."""
    yield gateway
    gateway.play(["text", "fine", 0], ["done", "stop"])
    for path in PATHS:
        assert text_of(path, gateway.request("POST", path, json_body=BODIES[path]).json()) == "fine"
    health = gateway.request("GET", "/health").json()
    assert (health["busy"], health["queued"]) == (False, 0)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("script", [HALVES, HALVES[:1] + HALVES[2:]], ids=["in the reply", "in the prompt"])
def test_a_client_that_leaves(busy: GatewayProcess, path: str, streamed: bool, script: list) -> None:
    busy.play(*script)
    leave(busy, path, streamed=streamed, when=lambda: bool(lines(busy, "GEN")))
    wait_until(lambda: bool(lines(busy, "STOP")))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_the_queue(busy: GatewayProcess, path: str, streamed: bool) -> None:
    busy.play(*HALVES)
    with busy.open_chat(stream=True):
        wait_until(lambda: bool(lines(busy, "GEN")))
        leave(busy, path, streamed=streamed, when=lambda: busy.request("GET", "/health").json()["queued"] == 1)
        wait_until(lambda: busy.request("GET", "/health").json()["queued"] == 0)
    wait_until(lambda: not busy.request("GET", "/health").json()["busy"])
    assert len(lines(busy, "GEN")) == 1


def test_leaving_between_two_prompts_of_one_request(busy: GatewayProcess) -> None:
    busy.play(*HALVES)
    body = json.dumps({"prompt": ["a", "b", "c"]}).encode()
    head = f"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(busy.address, timeout=20) as connection:
        connection.sendall(head.encode() + body)
        wait_until(lambda: bool(lines(busy, "GEN")))
    wait_until(lambda: bool(lines(busy, "STOP")))
    wait_until(lambda: not busy.request("GET", "/health").json()["busy"])
    assert len(lines(busy, "GEN")) == 1


@pytest.mark.parametrize("path", PATHS)
def test_a_crowd(busy: GatewayProcess, path: str) -> None:
    """Six at once under names that are not the model's, the first one slow: each is answered, under its name."""
    busy.play(["text", "a reply", 0.02], ["done", "stop"])
    names = ["claude-haiku", "claude-sonnet", "claude-opus", "gpt", "x", ""]

    def ask(name: str) -> Any:
        return busy.request("POST", path, json_body={**BODIES[path], "model": name})

    with ThreadPoolExecutor(len(names)) as pool:
        replies = list(pool.map(ask, names))
    assert [text_of(path, reply.json()) for reply in replies] == ["a reply"] * len(names)
    if path == "/v1/messages":
        assert [reply.json()["model"] for reply in replies] == [*names[:-1], "tiny"]


@pytest.mark.parametrize("path", PATHS)
def test_an_engine_that_is_killed(start_gateway: Callable[..., GatewayProcess], path: str) -> None:
    """The stream says so and ends, whoever waits is served by the next engine."""
    gateway = start_gateway(script=json.dumps({"request": HALVES}))
    gateway.wait_ready()
    pid = gateway.engine_pid()
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(gateway.request, "POST", path, json_body={**BODIES[path], "stream": True})
        wait_until(lambda: bool(lines(gateway, "GEN")))
        waiting = pool.submit(gateway.request, "POST", path, json_body=BODIES[path])
        wait_until(lambda: gateway.request("GET", "/health").json()["queued"] == 1)
        gateway.play(["text", "fine", 0], ["done", "stop"])
        os.kill(pid, signal.SIGKILL)
        last = running.result().text.rstrip("\n").split("data: ")[-1]
        assert "error" in json.loads(last)
        assert text_of(path, waiting.result().json()) == "fine"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("streamed", [True, False])
def test_an_engine_that_falls_silent(start_gateway: Callable[..., GatewayProcess], path: str, streamed: bool) -> None:
    gateway = start_gateway("--silence-timeout", "0.2", script=json.dumps({"request": [["hang"]]}))
    gateway.wait_ready()
    reply = gateway.request("POST", path, json_body={**BODIES[path], "stream": streamed})
    assert "error" in reply.text
    gateway.play(["text", "fine", 0], ["done", "stop"])
    wait_until(lambda: gateway.request("GET", "/health").status_code == 200)
    assert text_of(path, gateway.request("POST", path, json_body=BODIES[path]).json()) == "fine"


@pytest.mark.parametrize("path", PATHS)
def test_a_server_that_stops(start_gateway: Callable[..., GatewayProcess], path: str) -> None:
    """A stream that is under way gets an error in its API's shape and a proper end."""
    gateway = start_gateway(script=json.dumps({"request": HALVES}))
    gateway.wait_ready()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(gateway.request, "POST", path, json_body={**BODIES[path], "stream": True})
        wait_until(lambda: bool(lines(gateway, "GEN")))
        assert gateway.stop() == 0
        last = json.loads(running.result().text.rstrip("\n").split("data: ")[-1])
        assert "stopping" in last["error"]["message"]

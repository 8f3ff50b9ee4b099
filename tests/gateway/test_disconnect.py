"""Clients that go away: in the prompt, in the reply, in the queue; streamed or not. The server is production's."""

import http.client
import json
import socket
import time
from collections.abc import Iterator

import pytest

from tests.gateway.harness import GatewayProcess, wait_until

HALVES = [["progress", 1, 9], ["text", "abc", 0], ["sleep", 60], ["text", "never", 0], ["done", "stop"]]


@pytest.fixture
def busy(gateway: GatewayProcess) -> Iterator[GatewayProcess]:
    """A gateway that must be idle and right afterwards."""
    yield gateway
    gateway.play(["text", "fine", 0], ["done", "stop"])
    assert gateway.chat("q").json()["choices"][0]["message"]["content"] == "fine"
    health = gateway.request("GET", "/health").json()
    assert (health["busy"], health["queued"]) == (False, 0)


def stops(gateway: GatewayProcess) -> list[str]:
    return [line for line in gateway.received() if line.startswith("STOP")]


def gens(gateway: GatewayProcess) -> list[str]:
    return [line for line in gateway.received() if line.startswith("GEN")]


@pytest.mark.parametrize("stream", [True, False])
def test_in_the_reply(busy: GatewayProcess, stream: bool) -> None:
    busy.play(*HALVES)
    connection = busy.open_chat(stream=stream)
    if stream:
        received = b""
        while b"keep-alive" not in received:
            received += connection.recv(1000)
    wait_until(lambda: len(gens(busy)) == 1)
    time.sleep(0.1)
    connection.close()
    wait_until(lambda: len(stops(busy)) == 1)
    assert stops(busy)[0].split()[1] == gens(busy)[0].split("id=")[1].split()[0]
    assert stops(busy)[0].endswith("keep=3")


@pytest.mark.parametrize("stream", [True, False])
def test_in_the_prompt(busy: GatewayProcess, stream: bool) -> None:
    busy.play(["sleep", 60], ["text", "never", 0], ["done", "stop"])
    connection = busy.open_chat(stream=stream)
    wait_until(lambda: len(gens(busy)) == 1)
    connection.close()
    wait_until(lambda: len(stops(busy)) == 1)
    assert stops(busy)[0].endswith("keep=0")


@pytest.mark.parametrize("stream", [True, False])
def test_in_the_queue(busy: GatewayProcess, stream: bool) -> None:
    busy.play(["text", "a", 0], ["sleep", 60], ["done", "stop"])
    active = busy.open_chat(stream=True)
    wait_until(lambda: len(gens(busy)) == 1)
    queued = busy.open_chat(stream=stream, seed=77)
    wait_until(lambda: busy.request("GET", "/health").json()["queued"] == 1)
    queued.close()
    wait_until(lambda: busy.request("GET", "/health").json()["queued"] == 0)
    assert stops(busy) == []  # the active one was not touched
    active.close()
    wait_until(lambda: len(stops(busy)) == 1)
    assert not any("seed=77" in line for line in gens(busy))


def test_a_reset_connection(busy: GatewayProcess) -> None:
    busy.play(*HALVES)
    connection = busy.open_chat(stream=True)
    connection.recv(1000)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()
    wait_until(lambda: len(stops(busy)) == 1)


def test_no_token_of_a_cancelled_request_reaches_the_next(busy: GatewayProcess) -> None:
    busy.play(["text", "old " * 200, 0.002], ["done", "stop"])
    for _ in range(5):
        before = len(stops(busy))
        connection = busy.open_chat(stream=True)
        connection.recv(300)
        connection.close()
        wait_until(lambda n=before: len(stops(busy)) == n + 1)
    busy.play(["text", "new", 0], ["done", "stop"])
    assert busy.chat("q").json()["choices"][0]["message"]["content"] == "new"


def test_a_client_that_hangs_up_before_its_body_is_whole(busy: GatewayProcess) -> None:
    connection = socket.create_connection(busy.address, timeout=10)
    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{")
    connection.close()
    assert gens(busy) == []


def test_a_kept_connection_serves_the_next_request(busy: GatewayProcess) -> None:
    connection = http.client.HTTPConnection(*busy.address, timeout=10)
    body = json.dumps({"messages": [{"role": "user", "content": "q"}], "stream": True})
    for _ in range(3):
        connection.request("POST", "/v1/chat/completions", body)
        response = connection.getresponse()
        assert response.status == 200
        assert response.read().endswith(b"data: [DONE]\n\n")
    connection.close()

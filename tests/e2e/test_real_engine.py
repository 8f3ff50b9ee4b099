"""Gateway and engine together: real clients, kills at both ends, cancels at random points."""

import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import greedy
from tests.gateway.harness import GatewayProcess, process_gone, wait_until

Start = Callable[..., GatewayProcess]
LONG = "then they run home in the evening light and tell their mother " * 12


def client(gateway: GatewayProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=gateway.url + "/v1", api_key="unused", max_retries=0)


def streaming(gateway: GatewayProcess, text: str, **fields: object) -> socket.socket:
    """A connection on which a long reply is on its way."""
    fields = {"stream": True, "max_tokens": 4000, **fields}
    return gateway.open_chat(messages=[{"role": "user", "content": text}], **fields)


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    received = b""
    while mark not in received:
        piece = connection.recv(4096)
        assert piece, received
        received += piece
    return received


def test_the_real_client_and_killing_the_engine(start_gateway: Start) -> None:
    gateway = start_gateway()
    chat = client(gateway).chat.completions
    question = [{"role": "user", "content": "the children stand and watch"}]
    reply = chat.create(model="any", messages=question, max_tokens=20, temperature=0, seed=1)
    assert reply.usage is not None
    assert reply.choices[0].finish_reason in ("length", "stop")
    chunks = list(
        chat.create(
            model="any",
            messages=question,
            max_tokens=20,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == reply.choices[0].message.content
    assert chunks[-1].usage == reply.usage
    sampled = [
        chat.create(model="any", messages=question, max_tokens=20, temperature=1.5, seed=9).choices[0].message.content
        for _ in range(2)
    ]
    assert sampled[0] == sampled[1]

    # kill -9 in mid-stream, then a request that works
    expected = greedy(gateway)
    connection = streaming(gateway, "over and over")
    read_until(connection, b'"content"')
    engine = gateway.engine_pid()
    os.kill(engine, signal.SIGKILL)
    received = read_until(connection, b"[DONE]")
    assert b"exit code -9" in received
    connection.close()
    assert greedy(gateway) == expected
    assert gateway.engine_pid() != engine

    # the end: drained, engine gone
    engine = gateway.engine_pid()
    connection = streaming(gateway, "until the end")
    read_until(connection, b'"content"')
    assert gateway.stop(timeout_s=5) == 0
    assert process_gone(engine)
    connection.close()


def test_cancels_at_random_points_leave_no_trace(start_gateway: Start, rng: random.Random) -> None:
    gateway = start_gateway()
    engine = gateway.engine_pid()
    expected = greedy(gateway)
    for _ in range(50):
        connection = streaming(gateway, LONG[rng.randrange(300) :], stream=rng.random() < 0.7, temperature=1)
        time.sleep(rng.choice([0, 0.005, 0.02, 0.06]))
        connection.close()
    assert greedy(gateway) == expected
    wait_until(lambda: not gateway.request("GET", "/health").json()["busy"])
    assert gateway.engine_pid() == engine


@pytest.mark.parametrize("reading", [True, False])
def test_killing_the_gateway_ends_the_engine(start_gateway: Start, reading: bool) -> None:
    gateway = start_gateway()
    engine = gateway.engine_pid()
    connection = None
    if reading:
        connection = streaming(gateway, "to the very end")
        read_until(connection, b"HTTP/1.1 200")
    gateway.process.kill()
    wait_until(lambda: process_gone(engine), timeout_s=5)
    if connection is not None:
        connection.close()


def test_limits_of_the_real_context(start_gateway: Start) -> None:
    gateway = start_gateway("--engine-arg", "--max-context", "--engine-arg", "128")
    refused = gateway.chat(LONG, stream=True)
    assert refused.status_code == 400
    assert refused.json()["error"]["n_ctx"] == 128
    reply = gateway.chat("water", max_tokens=4000, temperature=1, seed=5).json()
    assert reply["usage"]["total_tokens"] <= 129
    assert greedy(gateway) == greedy(gateway)


def test_a_damaged_model_is_said_plainly(start_gateway: Start, tiny_model: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "cut.gguf"
    damaged.write_bytes(tiny_model.read_bytes()[:-5000])
    from tests.gateway.harness import running_gateway

    with running_gateway(tmp_path, model=damaged, fake=False) as gateway:
        wait_until(lambda: gateway.request("GET", "/health").json()["error"].get("state") == "failed", 30)
        message = gateway.request("GET", "/health").json()["error"]["message"]
        assert "cut.gguf" in message


@pytest.mark.model
def test_the_fetched_pack_talks_english(start_gateway: Start, pack: Path) -> None:
    gateway = start_gateway(model=pack)
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    reply = client(gateway).chat.completions.create(model="any", messages=messages, max_tokens=24, temperature=0)
    text = reply.choices[0].message.content or ""
    assert "Paris" in text, text
    assert "<|im_end|>" not in text
    again = gateway.events(*messages, temperature=0, max_tokens=24)
    assert "".join(c["delta"].get("content", "") for e in again for c in e["choices"]) == text
    assert json.dumps(again[-1]["timings"])

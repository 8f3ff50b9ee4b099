"""Talks llama.cpp's native API to a gateway under test."""

import json
from typing import Any

from tests.gateway.harness import GatewayProcess, Reply

IM_START, IM_END = 318, 319


def complete(gateway: GatewayProcess, prompt: Any = "hi", *, path: str = "/completion", **fields: Any) -> Reply:
    return gateway.request("POST", path, json_body={"prompt": prompt, **fields})


def stream(gateway: GatewayProcess, prompt: Any = "hi", **fields: Any) -> list[dict]:
    """The events of a streamed completion; this API has no [DONE]."""
    reply = complete(gateway, prompt, stream=True, **fields)
    assert reply.status_code == 200, reply.text
    return [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n") if line.startswith("data: ")]


def say(gateway: GatewayProcess, text: str, finish: str = "stop") -> None:
    gateway.play(["text", text, 0], ["done", finish])


def sent_ids(gateway: GatewayProcess, number: int = 0) -> list[int]:
    return [int(word) for word in gateway.received()[number].split()[-1].split(",")]

"""The embedded pack calls tools: real gateway, real engine, real client. Right name and arguments, then an answer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.gateway.harness import GatewayProcess, running_gateway

PACK = Path(__file__).parents[2] / "packs" / "tiny"


def tool(name: str, about: str, **types: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in types.items()}, "required": [*types]}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


WEATHER = tool("get_weather", "Get the current weather in a city.", city="string")
TIMER = tool("set_timer", "Set a timer.", minutes="integer")
LIGHT = tool("set_light", "Switch a light on or off.", room="string", on="boolean")

CASES = [
    (
        "What is the weather in Paris?",
        [("get_weather", {"city": "Paris"})],
        '{"temperature": 21, "condition": "sunny"}',
        "It is sunny in Paris, and the temperature is 21 degrees.",
    ),
    ("Set a timer for 12 minutes.", [("set_timer", {"minutes": 12})], "ok", "The timer is set for 12 minutes."),
    (
        "Turn on the light in the kitchen.",
        [("set_light", {"room": "kitchen", "on": True})],
        "ok",
        "The light in the kitchen is now on.",
    ),
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with running_gateway(tmp_path_factory.mktemp("tiny"), model=PACK, fake=False) as process:
        process.wait_ready(120)
        yield process


@pytest.fixture
def client(gateway: GatewayProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=gateway.url + "/v1", api_key="unused", max_retries=0)


@pytest.mark.parametrize(("question", "calls", "result", "answer"), CASES, ids=["weather", "timer", "light"])
def test_a_call_and_the_answer_from_its_result(
    client: openai.OpenAI, question: str, calls: list[tuple[str, Any]], result: str, answer: str
) -> None:
    fields: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 200, "tools": [WEATHER, TIMER, LIGHT]}
    history: list[Any] = [{"role": "user", "content": question}]
    with client.chat.completions.stream(messages=history, **fields) as stream:
        streamed = stream.get_final_completion().choices[0].message
    choice = client.chat.completions.create(messages=history, **fields).choices[0]
    assert choice.finish_reason == "tool_calls"
    for message in (choice.message, streamed):
        made = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]
        assert made == calls
    history.append(choice.message.model_dump(exclude_none=True))
    history += [{"role": "tool", "tool_call_id": call.id, "content": result} for call in choice.message.tool_calls or []]
    reply = client.chat.completions.create(messages=history, **fields).choices[0]
    assert (reply.finish_reason, reply.message.content) == ("stop", answer)


def test_small_talk_calls_nothing_and_a_demand_is_not_passed_over(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 200, "tools": [WEATHER]}
    hello: list[Any] = [{"role": "user", "content": "Hello!"}]
    choice = client.chat.completions.create(messages=hello, **fields).choices[0]
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    with pytest.raises(openai.APIStatusError, match="tool_choice demands") as caught:
        client.chat.completions.create(messages=hello, tool_choice="required", **fields)
    assert caught.value.status_code == 502

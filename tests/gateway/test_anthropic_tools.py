"""Tools through Anthropic's messages API: calls streamed and whole, results in their order, choices, counting."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from gateway.text.tokenizer import Tokenizer
from tests.gateway.harness import GatewayProcess, Reply, running_gateway
from tests.gateway.model_file import TOOL_TEMPLATE, vocabulary, write_model_file
from tests.gateway.test_anthropic import check_order, events_of

PROPERTIES = {"place": {"type": "string"}, "days": {"type": "integer"}, "more": {"type": "object"}}
WEATHER = {"name": "weather", "description": "d", "input_schema": {"type": "object", "properties": PROPERTIES}}
NOW = {"name": "now", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}
TOOLS = [WEATHER, NOW]
QUESTION = [{"role": "user", "content": "hi"}]
PLACE, DAYS = "<parameter=place>\n02134\n</parameter>\n", "<parameter=days>\n3\n</parameter>\n"
ONE = f"<tool_call>\n<function=weather>\n{PLACE}{DAYS}</function>\n</tool_call>"
TWO = "<tool_call>\n<function=now>\n</function>\n</tool_call>"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    directory = tmp_path_factory.mktemp("tools")
    model = write_model_file(directory / "tools.gguf", vocabulary(template=TOOL_TEMPLATE))
    with running_gateway(directory, model=model) as gateway:
        gateway.wait_ready()
        yield gateway


@pytest.fixture
def gateway(shared: GatewayProcess) -> GatewayProcess:
    for name in ("script.json", "received"):
        Path(shared.directory / name).unlink(missing_ok=True)
    return shared


@pytest.fixture
def client(gateway: GatewayProcess) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=gateway.url, api_key="unused", max_retries=0)


def say(gateway: GatewayProcess, text: str, finish: str = "stop") -> None:
    gateway.play(["text", text, 0], ["done", finish])


def post(gateway: GatewayProcess, path: str = "/v1/messages", **fields: Any) -> Reply:
    return gateway.request("POST", path, json_body={"max_tokens": 500, "messages": QUESTION, "tools": TOOLS, **fields})


def prompt_text(gateway: GatewayProcess) -> str:
    ids = [int(word) for word in gateway.received()[-1].split()[-1].split(",")]
    return Tokenizer.from_metadata(vocabulary()).decode(ids)


def test_calls_of_a_stream(gateway: GatewayProcess) -> None:
    say(gateway, f"Let me see.\n{ONE}\n{TWO}")
    events = [event for event in events_of(post(gateway, stream=True)) if event["type"] != "ping"]
    check_order(events)
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [start["type"] for start in starts] == ["text", "tool_use", "tool_use"]
    assert [start["input"] for start in starts[1:]] == [{}, {}]
    assert [start["name"] for start in starts[1:]] == ["weather", "now"]
    assert len({start["id"] for start in starts[1:]}) == 2
    assert all(start["id"].startswith("toolu_") for start in starts[1:])
    pieces: dict[int, str] = {1: "", 2: ""}
    for event in events:
        if event["type"] == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
            pieces[event["index"]] += event["delta"]["partial_json"]
    assert [json.loads(text) for text in pieces.values()] == [{"place": "02134", "days": 3}, {}]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_calls_with_the_real_client(gateway: GatewayProcess, client: anthropic.Anthropic) -> None:
    say(gateway, f"Let me see.\n{ONE}\n{TWO}")
    asked: dict[str, Any] = {"model": "m", "max_tokens": 500, "messages": QUESTION, "tools": TOOLS}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as streamed:
        message = streamed.get_final_message()
    for reply in (whole, message):
        assert [block.type for block in reply.content] == ["text", "tool_use", "tool_use"]
        assert [block.input for block in reply.content[1:]] == [{"place": "02134", "days": 3}, {}]
        assert reply.stop_reason == "tool_use"
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": text}
        for block, text in zip(whole.content[1:], ("rain", "noon"), strict=True)
    ]
    turns = [*QUESTION, {"role": "assistant", "content": whole.content}, {"role": "user", "content": results}]
    say(gateway, "It rains.")
    assert client.messages.create(**{**asked, "messages": turns}).content[0].text == "It rains."
    assert prompt_text(gateway).index("rain[for") < prompt_text(gateway).index("noon[for")


def test_results_and_texts_keep_their_order(gateway: GatewayProcess) -> None:
    calls = [{"type": "tool_use", "id": name, "name": "weather", "input": {"more": {"x": [1]}}} for name in ("a", "b")]
    results = [
        {"type": "text", "text": "first"},
        {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": part} for part in ("one", "two")]},
        {"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": "broken"},
        {"type": "text", "text": "last"},
    ]
    turns = [*QUESTION, {"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    assert post(gateway, messages=turns).status_code == 200
    text = prompt_text(gateway)
    wanted = ["[a weather:", '{"x": [1]}', "[b weather:", "first", "one\ntwo[for b]", "Error: broken[for a]", "last"]
    places = [text.index(part) for part in wanted]
    assert places == sorted(places)


def test_a_call_that_is_cut_off(gateway: GatewayProcess) -> None:
    say(gateway, ONE)
    message = post(gateway, max_tokens=len(ONE) - 30).json()
    assert message["stop_reason"] == "max_tokens"
    assert not [block for block in message["content"] if block["type"] == "tool_use"]


def test_choices(gateway: GatewayProcess) -> None:
    say(gateway, f"{ONE}\n{TWO}")
    one = post(gateway, tool_choice={"type": "auto", "disable_parallel_tool_use": True}).json()
    assert [block["type"] for block in one["content"]] == ["tool_use"]
    none = post(gateway, tool_choice={"type": "none"}).json()
    assert [block["type"] for block in none["content"]] == ["text"]
    assert none["stop_reason"] == "end_turn"
    say(gateway, "no call")
    for choice in ({"type": "any"}, {"type": "tool", "name": "now"}):
        reply = post(gateway, tool_choice=choice)
        assert reply.status_code >= 400
        assert "tool_choice" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "bash", "type": "bash_20250124"}]}, "tools[0]"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1]"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        ({"messages": [*QUESTION, {"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}]}, "messages[1]"),
    ],
)
def test_refusals_name_the_field(gateway: GatewayProcess, fields: dict[str, Any], path: str) -> None:
    reply = post(gateway, **fields)
    assert reply.status_code == 400
    assert path in reply.json()["error"]["message"]
    assert gateway.received() == []


def test_counting_with_tools_is_exact(gateway: GatewayProcess) -> None:
    counted = post(gateway, "/v1/messages/count_tokens", system="be brief").json()["input_tokens"]
    usage = post(gateway, system="be brief").json()["usage"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counted > post(gateway, "/v1/messages/count_tokens", tools=[]).json()["input_tokens"]

"""Anthropic's messages API as its clients see it, through the production entry point and the fake engine."""

import json
import socket
from collections.abc import Callable
from typing import Any

import anthropic
import pytest

from tests.gateway.harness import GatewayProcess, Reply, wait_until

THINK, END_THINK = "<think>", "</think>"
QUESTION = [{"role": "user", "content": "hi"}]
THINKING = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture
def client(gateway: GatewayProcess) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=gateway.url, api_key="unused", max_retries=0)


def say(gateway: GatewayProcess, text: str, finish: str = "stop") -> None:
    gateway.play(["text", text, 0], ["done", finish])


def post(gateway: GatewayProcess, *, path: str = "/v1/messages", headers: Any = None, **fields: Any) -> Reply:
    body = {"model": "m", "max_tokens": 100, "messages": QUESTION, **fields}
    return gateway.request("POST", path, json_body=body, headers=headers)


def events_of(reply: Reply) -> list[dict]:
    """The events of a stream, each under the name that it says."""
    assert reply.status_code == 200, reply.text
    events = []
    for block in reply.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def stream(gateway: GatewayProcess, **fields: Any) -> list[dict]:
    """The events of a streamed message without pings; their order is checked."""
    events = [event for event in events_of(post(gateway, stream=True, **fields)) if event["type"] != "ping"]
    check_order(events)
    return events


def check_order(events: list[dict]) -> None:
    """One start, blocks that open one at a time with indexes from 0, one delta and one stop of the message."""
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    open_index, next_index = None, 0
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert open_index is None
            assert event["index"] == next_index
            open_index = next_index
            next_index += 1
        else:
            assert event["index"] == open_index
            if event["type"] == "content_block_stop":
                open_index = None
            else:
                assert event["type"] == "content_block_delta"
    assert open_index is None


# ---- the real client


def test_a_whole_message_with_the_real_client(gateway: GatewayProcess, client: anthropic.Anthropic) -> None:
    say(gateway, "Grüße 👋")
    message = client.messages.create(model="claude-x", max_tokens=100, messages=QUESTION)
    assert [block.model_dump() for block in message.content] == [{"type": "text", "text": "Grüße 👋", "citations": None}]
    assert (message.role, message.model) == ("assistant", "claude-x")
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.id.startswith("msg_")
    assert message.usage.output_tokens == len("Grüße 👋".encode())


def test_a_streamed_message_with_the_real_client(gateway: GatewayProcess, client: anthropic.Anthropic) -> None:
    say(gateway, f"{THINK}a plan{END_THINK}the answer")
    with client.messages.stream(model="m", max_tokens=2048, messages=QUESTION) as streamed:
        assert "".join(streamed.text_stream) == "the answer"
        message = streamed.get_final_message()
    thinking, text = message.content
    assert (thinking.type, text.type) == ("thinking", "text")
    assert (thinking.thinking, text.text) == ("a plan", "the answer")
    assert thinking.signature
    assert message.stop_reason == "end_turn"
    whole = client.messages.create(model="m", max_tokens=2048, messages=QUESTION)
    assert [block.model_dump() for block in whole.content] == [
        block.model_dump(exclude={"parsed_output"}) for block in message.content
    ]
    assert whole.usage == message.usage


def test_errors_with_the_real_client(gateway: GatewayProcess, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(model="m", max_tokens=-1, messages=QUESTION)
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: 41\d\d tokens > 4096 maximum"):
        client.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "x" * 4096}])
    gateway.play(["text", "ab", 0], ["error", "out_of_memory", "no room"])
    with pytest.raises(anthropic.APIStatusError, match="no room"):
        list(client.messages.create(model="m", max_tokens=9, messages=QUESTION, stream=True))


# ---- streams


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("plain", ["text"]),
        (f"{THINK}plan{END_THINK}answer", ["thinking", "text"]),
        (f"{THINK}plan", ["thinking"]),
        ("", []),
    ],
)
def test_blocks_in_their_order(gateway: GatewayProcess, text: str, kinds: list[str]) -> None:
    say(gateway, text)
    events = stream(gateway)
    assert [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"] == kinds
    assert [block["type"] for block in post(gateway).json()["content"]] == kinds


def test_a_thinking_block(gateway: GatewayProcess) -> None:
    say(gateway, f"{THINK}plan{END_THINK}x")
    events = [event for event in stream(gateway) if event.get("index") == 0]
    assert events[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    deltas = [event["delta"] for event in events[1:-1]]
    assert "".join(delta["thinking"] for delta in deltas[:-1]) == "plan"
    assert deltas[-1]["type"] == "signature_delta"
    assert [delta["type"] for delta in deltas].count("signature_delta") == 1
    assert events[-1]["type"] == "content_block_stop"


def test_thinking_that_is_not_to_be_shown(gateway: GatewayProcess) -> None:
    gateway.play(["text", f"plan{END_THINK}x", 0], ["done", "stop"])
    content = post(gateway, thinking={"type": "adaptive", "display": "omitted"}).json()["content"]
    assert [block.get("thinking") for block in content] == ["", None]
    assert content[0]["signature"]


def test_usage(gateway: GatewayProcess) -> None:
    gateway.play(["line", "RESUME 4"], ["text", "abc", 0], ["line", "DONE 3 $N 1.0 1.0 stop 0 0 4 0 0 0 0 0 9 id=$ID"])
    start, *_, delta, _ = stream(gateway)
    prompt_tokens = post(gateway, path="/v1/messages/count_tokens").json()["input_tokens"]
    assert start["message"]["usage"]["input_tokens"] == prompt_tokens
    assert (delta["usage"]["input_tokens"], delta["usage"]["cache_read_input_tokens"]) == (prompt_tokens - 4, 4)
    assert delta["usage"]["output_tokens"] == 3
    assert post(gateway).json()["usage"] == delta["usage"]


def test_a_prompt_that_is_read_for_long(gateway: GatewayProcess) -> None:
    gateway.play(["sleep", 1], ["progress", 2, 9], ["progress", 9, 9], ["text", "x", 0], ["done", "stop"])
    kinds = [event["type"] for event in events_of(post(gateway, stream=True))]
    assert kinds[:4] == ["message_start", "ping", "ping", "ping"]


def test_the_stream_begins_before_the_model_does(gateway: GatewayProcess) -> None:
    gateway.play(["sleep", 60], ["done", "stop"])
    body = json.dumps({"max_tokens": 5, "messages": QUESTION, "stream": True}).encode()
    head = f"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(gateway.address, timeout=20) as connection:
        connection.sendall(head.encode() + body)
        received = b""
        while b"message_start" not in received:
            received += connection.recv(4096)
    wait_until(lambda: any(line.startswith("STOP") for line in gateway.received()))
    wait_until(lambda: not gateway.request("GET", "/health").json()["busy"])


# ---- ends


def test_a_stop_sequence(gateway: GatewayProcess) -> None:
    gateway.play(["text", "one END two", 0], ["sleep", 30], ["done", "stop"])
    for reply in (post(gateway, stop_sequences=["END", ""]).json(), stream(gateway, stop_sequences=["END"])[-2]["delta"]):
        assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "END")
    assert post(gateway, stop_sequences=["END"]).json()["content"] == [{"type": "text", "text": "one "}]


def test_the_cap(gateway: GatewayProcess) -> None:
    say(gateway, "abcdef")
    message = post(gateway, max_tokens=3).json()
    assert (message["content"][0]["text"], message["stop_reason"]) == ("abc", "max_tokens")
    assert post(gateway, max_tokens=4096).json()["stop_reason"] == "end_turn"


# ---- what the engine is asked


def prompts(gateway: GatewayProcess) -> list[str]:
    return [line.split()[-1] for line in gateway.received() if line.startswith("GEN")]


def test_sampling_reaches_the_engine(gateway: GatewayProcess) -> None:
    post(gateway, temperature=0.5, top_p=0.25, top_k=7)
    for word in ("temperature=0.5", "top_p=0.25", "top_k=7"):
        assert word in gateway.received()[0].split()
    assert gateway.received()[0].startswith("GEN 100 ")


def test_texts_in_every_spelling(gateway: GatewayProcess) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    text = {"type": "text", "text": "hi", **mark}
    post(gateway, system="be brief")
    post(gateway, system=[{"type": "text", "text": "be brief", **mark}], messages=[{"role": "user", "content": [text]}])
    empty = {"type": "text", "text": ""}
    post(gateway, system=[empty, {"type": "text", "text": "be brief"}], messages=[{"role": "user", "content": [empty, text]}])
    post(gateway, system="be brief", metadata={"user_id": "u"}, service_tier="auto", cache_control=None, future=[1])
    gateway.chat({"role": "system", "content": "be brief"}, "hi", chat_template_kwargs={"enable_thinking": False})
    assert len(set(prompts(gateway))) == 1
    assert len(prompts(gateway)) == 5


def test_no_system_text(gateway: GatewayProcess) -> None:
    for system in ({}, {"system": None}, {"system": ""}, {"system": []}, {"system": [{"type": "text", "text": ""}]}):
        post(gateway, **system)
    assert len(set(prompts(gateway))) == 1


def test_the_line_that_differs_in_every_request(gateway: GatewayProcess) -> None:
    for mark in ("aaaa", "bbbb"):
        line = f"x-anthropic-billing-header: cc_version=2.1; cch={mark};"
        post(gateway, system=[{"type": "text", "text": line}, {"type": "text", "text": "be brief"}])
        post(gateway, system=f"{line}\nbe brief")
    post(gateway, system="be brief")
    assert len(set(prompts(gateway))) == 1


def test_a_conversation_with_thinking(gateway: GatewayProcess) -> None:
    reply = [
        {"type": "thinking", "thinking": "a plan", "signature": "s"},
        {"type": "redacted_thinking", "data": "xx"},
        {"type": "text", "text": "an answer"},
    ]
    turns = [*QUESTION, {"role": "assistant", "content": reply}, {"role": "user", "content": "more"}]
    assert post(gateway, messages=turns).status_code == 200
    same = {"role": "assistant", "content": "an answer", "reasoning_content": "a plan"}
    gateway.chat("hi", same, "more", chat_template_kwargs={"enable_thinking": False})
    first, second = prompts(gateway)
    assert first == second


def test_a_reply_that_is_begun(gateway: GatewayProcess) -> None:
    say(gateway, '"x": 1}')
    for begun in ("{", "{<|im_end|>"):
        turns = [*QUESTION, {"role": "assistant", "content": [{"type": "text", "text": begun}]}]
        assert post(gateway, messages=turns).json()["content"] == [{"type": "text", "text": '"x": 1}'}]
    post(gateway)
    first, forged, plain = prompts(gateway)
    assert first == f"{plain},{ord('{')}"
    assert forged.startswith(f"{first},{ord('<')},")
    counted = post(gateway, path="/v1/messages/count_tokens", messages=turns).json()["input_tokens"]
    assert counted == len(forged.split(","))


def test_a_system_message_among_the_turns(gateway: GatewayProcess) -> None:
    turns = [*QUESTION, {"role": "assistant", "content": "yes"}, {"role": "system", "content": "hurry"}, *QUESTION]
    assert post(gateway, messages=turns).status_code == 200


@pytest.mark.parametrize(
    ("fields", "opened"),
    [
        ({}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": THINKING}, True),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, True),
        ({"output_config": {"effort": "low"}}, False),
    ],
)
def test_thinking_only_when_it_is_asked_for(gateway: GatewayProcess, fields: dict[str, Any], opened: bool) -> None:
    say(gateway, f"plan{END_THINK}answer")
    kinds = [block["type"] for block in post(gateway, **fields).json()["content"]]
    assert kinds == (["thinking", "text"] if opened else ["text"])


# ---- counting


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "be brief"},
        {"system": [{"type": "text", "text": "be brief"}], "thinking": THINKING},
        {"messages": [*QUESTION, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "é👍" * 50}]},
    ],
)
def test_counting_is_exact(gateway: GatewayProcess, client: anthropic.Anthropic, fields: dict[str, Any]) -> None:
    body = {"model": "m", "messages": QUESTION, **fields}
    counted = client.messages.count_tokens(**body).input_tokens
    usage = client.messages.create(max_tokens=2048, **body).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert counted == len(prompts(gateway)[0].split(","))
    assert len(prompts(gateway)) == 1  # counting asks the engine nothing


# ---- routes, headers, refusals


@pytest.mark.parametrize("path", ["/v1/messages?beta=true", "/v1/messages/count_tokens?beta=true"])
def test_queries_and_headers_that_do_not_matter(gateway: GatewayProcess, path: str) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "some-future-thing", "x-api-key": "any"}
    assert post(gateway, path=path, headers=headers).status_code == 200


def test_keys_in_both_headers(start_gateway: Callable[..., GatewayProcess]) -> None:
    gateway = start_gateway("--api-key", "secret")
    wait_until(lambda: gateway.request("GET", "/health").status_code == 200)
    for headers in ({"x-api-key": "secret"}, {"Authorization": "Bearer secret"}):
        assert post(gateway, headers=headers).status_code == 200
    reply = post(gateway, headers={"x-api-key": "wrong"})
    assert (reply.status_code, reply.json()["error"]["type"]) == (401, "authentication_error")
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=gateway.url, api_key="wrong", max_retries=0).messages.create(
            model="m", max_tokens=5, messages=QUESTION
        )


THOUGHT = {"type": "thinking", "thinking": "t", "signature": "s"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, IMAGE]}]}, "messages[0].content[1]"),
        ({"messages": [{"role": "assistant", "content": "x"}], "thinking": THINKING}, "messages"),
        ({"messages": [*QUESTION, {"role": "assistant", "content": "{"}], "thinking": THINKING}, "begun"),
        ({"messages": [*QUESTION, {"role": "assistant", "content": [THOUGHT]}]}, "messages[1]"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 65}, "stop_sequences"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"system": [IMAGE]}, "system[0]"),
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
def test_refusals_name_the_field(gateway: GatewayProcess, fields: dict[str, Any], path: str, streamed: bool) -> None:
    reply = post(gateway, stream=streamed, **fields)
    assert reply.status_code == 400
    body = reply.json()
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert path in body["error"]["message"]
    assert gateway.received() == []


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff"])
def test_bodies_that_are_no_json_object(gateway: GatewayProcess, path: str, body: bytes) -> None:
    reply = gateway.request("POST", path, body=body)
    assert reply.status_code == 400
    assert (reply.json()["type"], reply.json()["error"]["type"]) == ("error", "invalid_request_error")


def test_errors_of_the_server_have_this_apis_shape(gateway: GatewayProcess) -> None:
    reply = gateway.request("GET", "/v1/messages")
    assert (reply.status_code, reply.json()["type"]) == (405, "error")
    reply = gateway.request("POST", "/v1/messages", body=b"x" * (33 << 20))
    assert (reply.status_code, reply.json()["error"]["type"]) == (413, "request_too_large")


# ---- errors of the engine


def test_an_error_of_the_engine_before_the_first_byte(gateway: GatewayProcess) -> None:
    gateway.play(["error", "non_finite_logits", "the logits hold NaN"])
    for streamed in (True, False):
        reply = post(gateway, stream=streamed)
        assert (reply.status_code, reply.json()["error"]["type"]) == (500, "api_error")
        assert "NaN" in reply.json()["error"]["message"]


def test_an_error_of_the_engine_in_mid_stream(gateway: GatewayProcess) -> None:
    gateway.play(["text", "ab", 0], ["error", "out_of_memory", "no room"])
    *events, last = events_of(post(gateway, stream=True))
    assert events[-1]["type"] == "content_block_delta"
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
    assert "no room" in last["error"]["message"]
    say(gateway, "fine")
    assert post(gateway).json()["content"] == [{"type": "text", "text": "fine"}]


def test_while_the_model_loads(start_gateway: Callable[..., GatewayProcess]) -> None:
    gateway = start_gateway(script=json.dumps({"start": [["sleep", 30]]}))
    for streamed in (True, False):
        reply = post(gateway, stream=streamed)
        assert (reply.status_code, reply.json()["error"]["type"]) == (529, "overloaded_error")
        assert reply.headers["Retry-After"]


def test_a_queue_that_is_full(start_gateway: Callable[..., GatewayProcess]) -> None:
    script = json.dumps({"request": [["text", "a", 0], ["sleep", 60], ["done", "stop"]]})
    gateway = start_gateway("--max-queue", "0", script=script)
    gateway.wait_ready()
    with gateway.open_chat(stream=True):
        wait_until(lambda: gateway.request("GET", "/health").json()["busy"])
        for streamed in (True, False):
            assert post(gateway, stream=streamed).status_code == 529

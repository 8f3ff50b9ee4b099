"""JSON bodies that nobody would send, on every route that takes one: no failure of the server, always an answer in the
shape of its API, and an engine that is free afterwards."""

import http.client
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.apis.anthropic.request import MessagesBody
from gateway.apis.llamacpp.infill import InfillBody
from gateway.apis.llamacpp.request import CompletionBody
from gateway.apis.llamacpp.tokens import DetokenizeBody, TokenizeBody
from gateway.chat.request import ChatBody
from tests.gateway.harness import GatewayProcess, running_gateway
from tests.gateway.model_file import CONTROL, TOOL_TEMPLATE, vocabulary, write_model_file

Check = Callable[[int, Any], None]


def openai_error(_: int, body: Any) -> None:
    assert set(body["error"]) >= {"message", "type", "param", "code"}
    assert body["error"]["message"]


def anthropic_error(_: int, body: Any) -> None:
    assert body["type"] == "error"
    assert body["error"]["type"].endswith(("_error", "_large"))
    assert body["error"]["message"]


def llamacpp_error(status: int, body: Any) -> None:
    assert body["error"]["code"] == status
    assert body["error"]["type"]
    assert body["error"]["message"]


@dataclass(frozen=True)
class Route:
    path: str
    body: type[msgspec.Struct]
    check: Check
    valid: dict[str, Any]


TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {"x": {"type": "string"}}}}
CHAT = {
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {"role": "assistant", "content": "a", "reasoning_content": "r",
         "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": "\\u00e9"}'}}]},
        {"role": "tool", "tool_call_id": "c", "content": "t"},
        {"role": "user", "content": "q"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": TOOL["input_schema"]}}],
    "tool_choice": "auto", "parallel_tool_calls": True,
    "stop": ["x"], "max_tokens": 5, "temperature": 0.5, "seed": 1, "stream_options": {"include_usage": True},
    "logprobs": True, "top_logprobs": 1, "chat_template_kwargs": {"enable_thinking": True},
}  # fmt: skip
MESSAGES = {
    "max_tokens": 5,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "a"}]},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "i", "name": "f", "input": {"x": "y"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "i", "content": [{"type": "text", "text": "r"}]}]},
    ],
    "tools": [TOOL], "tool_choice": {"type": "auto"},
    "stop_sequences": ["x"], "thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "low"},
    "temperature": 0.5, "top_k": 3, "metadata": {"user_id": "u"},
}  # fmt: skip
COMPLETION = {
    "prompt": [1, "x", 2], "n_predict": 5, "stop": ["x"], "temperature": 0.5, "samplers": ["top_k"], "n_probs": 1,
    "response_fields": ["content"], "logit_bias": [], "lora": [{"id": 0, "scale": 0.0}], "seed": 1,
}  # fmt: skip
INFILL = {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "t", "filename": "f"}], "n_predict": 5}

CALL = "<tool_call><function=f><parameter=x>1</parameter></function></tool_call>"

ROUTES = [
    Route("/v1/chat/completions", ChatBody, openai_error, CHAT),
    Route("/v1/messages", MessagesBody, anthropic_error, MESSAGES),
    Route("/v1/messages/count_tokens", MessagesBody, anthropic_error, MESSAGES),
    Route("/completion", CompletionBody, llamacpp_error, COMPLETION),
    Route("/infill", InfillBody, llamacpp_error, INFILL),
    Route("/tokenize", TokenizeBody, llamacpp_error, {"content": ["a", 1], "with_pieces": True}),
    Route("/detokenize", DetokenizeBody, llamacpp_error, {"tokens": [1, 2]}),
    Route("/apply-template", ChatBody, llamacpp_error, CHAT),
]
BY_PATH = pytest.mark.parametrize("route", ROUTES, ids=[route.path for route in ROUTES])


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with every route, infill too. At its end it must have failed at nothing, and be free."""
    metadata = vocabulary(thinking=True, template=TOOL_TEMPLATE)
    names = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"]
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *names]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], *[CONTROL] * len(names)]
    directory = tmp_path_factory.mktemp("fuzz")
    with running_gateway(directory, model=write_model_file(directory / "coder.gguf", metadata)) as gateway:
        gateway.wait_ready()
        gateway.play(["progress", 1, 2], ["text", "<think>a</think>é\n" + CALL, 0], ["token", 319], ["done", "stop"])
        yield gateway
        assert not [line for line in gateway.log if "Traceback" in line or "failed" in line]
        health = gateway.request("GET", "/health").json()
        assert (health["busy"], health["queued"]) == (False, 0)
        ended = gateway.request("GET", "/v1/status").json()["totals"]
        assert ended["requests"] == len([line for line in gateway.received() if line.startswith("GEN")])


def check_answer(gateway: GatewayProcess, route: Route, body: bytes) -> tuple[int, Any]:
    """Post the body; the answer is a success, or a refusal in the shape of the route's API."""
    connection = http.client.HTTPConnection(*gateway.address, timeout=20)
    try:
        connection.request("POST", route.path, body=body)
        response = connection.getresponse()
        data = response.read()
    finally:
        connection.close()
    assert response.status < 500, data
    if response.status == 200 and response.headers.get_content_type() == "text/event-stream":
        events = [line for line in data.decode().split("\n") if line.startswith("data: ")]
        assert events
        return response.status, None
    answer = json.loads(data)
    if response.status != 200:
        route.check(response.status, answer)
    return response.status, answer


# ---- types


def wrong_values(field: msgspec.structs.FieldInfo) -> list[Any]:
    """Values of every JSON type that the field does not take."""
    wrong = []
    for value in (True, 5, 5.5, "text", [[]], {"x": [[]]}):
        try:
            msgspec.convert(value, field.type)
        except msgspec.ValidationError:
            wrong.append(value)
    return wrong


@BY_PATH
def test_a_wrong_type_in_any_field_is_named(fuzzed: GatewayProcess, route: Route) -> None:
    assert check_answer(fuzzed, route, json.dumps(route.valid).encode())[0] == 200
    tried = 0
    for field in msgspec.structs.fields(route.body):
        for value in wrong_values(field):
            status, answer = check_answer(fuzzed, route, json.dumps({**route.valid, field.encode_name: value}).encode())
            assert status == 400, (field.name, value)
            assert field.encode_name in answer["error"]["message"], (field.name, value)
            tried += 1
    assert tried >= len(msgspec.structs.fields(route.body))


# ---- anything

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12)
words = st.sampled_from(
    ["", "type", "text", "content", "role", "user", "assistant", "system", "tool", "image", "tool_use", "tool_result", "name",
     "prompt_string", "input", "<|im_end|>", "<think>", "\ud800", "\x00", "x" * 5000]
)  # fmt: skip
values = st.recursive(
    scalars | words | st.sampled_from([2**31, 2**63, -(2**70), 1e308, -0.0]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words | st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *[place for key, item in inner for place in places(item, (*path, key))]]


def changed(value: Any, place: tuple, new: Any) -> Any:
    """The value with something else at one place; Ellipsis takes it away."""
    if not place:
        return None if new is ... else new
    key, *rest = place
    copy = list(value) if isinstance(value, list) else dict(value)
    if not rest and new is ...:
        del copy[key]
    else:
        copy[key] = changed(value[key], tuple(rest), new)
    return copy


@st.composite
def bodies(draw: st.DrawFn, route: Route) -> bytes:
    """A valid body with a few changes, or anything."""
    body: Any = draw(values) if draw(st.integers(0, 19)) == 0 else {**route.valid, "stream": draw(st.booleans())}
    for _ in range(draw(st.integers(1, 3))):
        new = draw(st.just(...) | scalars | values)
        if isinstance(body, dict) and draw(st.integers(0, 3)) == 0:
            names = [field.encode_name for field in msgspec.structs.fields(route.body)]
            body = {**body, draw(st.sampled_from(names)): None if new is ... else new}
        else:
            body = changed(body, draw(st.sampled_from(places(body))), new)
    text = json.dumps(body, ensure_ascii=draw(st.booleans()))
    data = text.encode("utf-8", "surrogatepass")
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 19)) == 0 else data


@BY_PATH
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_body_gets_an_answer(fuzzed: GatewayProcess, route: Route, data: st.DataObject) -> None:
    check_answer(fuzzed, route, data.draw(bodies(route)))


@BY_PATH
def test_the_server_still_works(fuzzed: GatewayProcess, route: Route) -> None:
    assert check_answer(fuzzed, route, json.dumps(route.valid).encode())[0] == 200

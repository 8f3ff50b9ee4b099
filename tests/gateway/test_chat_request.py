"""The request's body: spellings, defaults, refusals that name the field; the history's forms."""

import json
from typing import Any

import pytest

from engine.protocol import Sampling
from gateway.chat.history import alternating, as_sent, has_late_system, without_system
from gateway.chat.request import ChatRequest, Message, parse_chat_request, sampling_defaults
from gateway.errors import InvalidRequest, Unsupported

DEFAULTS = Sampling(temperature=0.7)


def parse(**fields: Any) -> ChatRequest:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return parse_chat_request(json.dumps(body).encode(), DEFAULTS)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": 9, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 9, "max_completion_tokens": None}, 9),
        ({"max_tokens": None}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": 0}, 0),
    ],
)
def test_caps_in_all_spellings(fields: dict[str, Any], expected: int | None) -> None:
    assert parse(**fields).max_tokens == expected


@pytest.mark.parametrize(
    ("stop", "expected"),
    [(None, ()), ("", ()), ([], ()), ("x", ("x",)), (["x", ""], ("x",)), (["a", "b"], ("a", "b"))],
)
def test_stops_in_all_spellings(stop: Any, expected: tuple[str, ...]) -> None:
    assert parse(stop=stop).stops == expected


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": -7}, "max_tokens"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort"),
        ({"stop": [f"x{i}" for i in range(65)]}, "stop"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"stream_options": 5}, "stream_options"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert caught.value.param == path
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"n": 2}, "n"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0]"),
    ],
)
def test_what_is_not_done_is_refused_by_name(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(Unsupported) as caught:
        parse(**fields)
    assert caught.value.param == path


def test_harmless_values_of_what_is_not_done_pass() -> None:
    parse(n=1, tools=[], functions=None, response_format={"type": "text"}, logit_bias={}, modalities=["text"])
    parse(stream_options=None, user="me", metadata={"a": 1}, store=False, unknown_field={"x": [1]}, tool_choice="none")


def test_the_clients_word_wins_over_the_defaults() -> None:
    assert parse().sampling == DEFAULTS
    assert parse(temperature=0).sampling.temperature == 0
    assert parse(temperature=None).sampling.temperature == 0.7
    sampling = parse(top_k=100, top_p=0.5, min_p=0.1, seed=7, frequency_penalty=0.5, presence_penalty=-1).sampling
    assert sampling == Sampling(temperature=0.7, top_k=64, top_p=0.5, min_p=0.1, seed=7, penalty_freq=0.5, penalty_present=-1.0)
    assert parse(top_k=-1).sampling.top_k == 0
    assert parse(seed=-1).sampling.seed is None
    assert parse(seed=-2).sampling.seed == 2**64 - 2


def test_defaults_come_from_the_pack_then_the_file() -> None:
    file = {"general.sampling.temp": 0.6, "general.sampling.top_k": 40, "general.sampling.top_p": float("nan")}
    assert sampling_defaults({}, {}) == Sampling(temperature=0.7)
    assert sampling_defaults(file, {}) == Sampling(temperature=0.6, top_k=40)
    assert sampling_defaults(file, {"temperature": 1.0, "min_p": 0.05}) == Sampling(temperature=1.0, top_k=40, min_p=0.05)


def test_thinking_is_switched_in_all_spellings() -> None:
    assert parse().template_variables == {}
    assert parse(reasoning_effort="none").template_variables == {"enable_thinking": False}
    assert parse(reasoning_effort="high").template_variables == {"enable_thinking": True, "reasoning_effort": "high"}
    assert parse(chat_template_kwargs={"enable_thinking": False}).template_variables == {"enable_thinking": False}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"messages": [{"role": "user", "content": "\\ud800"}]}'])
def test_bodies_that_are_no_request(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_chat_request(body, DEFAULTS)


def test_a_deeply_nested_body_is_an_error_not_a_crash() -> None:
    body = b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(InvalidRequest):
        parse_chat_request(body, DEFAULTS)


def messages(*turns: tuple[str, Any]) -> list[Message]:
    body = {"messages": [{"role": role, "content": content} for role, content in turns]}
    return parse_chat_request(json.dumps(body).encode(), DEFAULTS).messages


def shape(turns: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(turn["role"], turn["content"]) for turn in turns]


def test_the_history_as_sent() -> None:
    turns = as_sent(messages(("developer", "d"), ("user", "a"), ("assistant", ""), ("user", "b"), ("system", "s")))
    assert shape(turns) == [("system", "d"), ("user", "a"), ("user", "b"), ("system", "s")]
    assert has_late_system(turns)
    turns = as_sent(messages(("developer", "d"), ("system", "s"), ("user", "a")))
    assert shape(turns) == [("system", "d\n\ns"), ("user", "a")]
    assert not has_late_system(turns)


def test_the_history_for_strict_templates() -> None:
    turns = as_sent(messages(("user", "a"), ("developer", "d"), ("user", "b"), ("assistant", "x"), ("system", "s")))
    assert shape(alternating(turns)) == [("system", "d\n\ns"), ("user", "a\n\nb"), ("assistant", "x")]
    assert shape(without_system(turns)) == [("user", "d\n\ns\n\na\n\nb"), ("assistant", "x")]


def test_content_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": ""}, {"type": "text", "text": "two"}]
    assert shape(as_sent(messages(("user", parts)))) == [("user", "one\ntwo")]


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video"])
def test_what_is_not_text_is_refused_by_place(kind: str) -> None:
    with pytest.raises(Unsupported) as caught:
        as_sent(messages(("system", "s"), ("user", [{"type": "text", "text": "x"}, {"type": kind, kind: {}}])))
    assert caught.value.param == "messages[1].content[1]"


def test_missing_contents_are_named() -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[0\].content"):
        as_sent(messages(("user", None)))
    with pytest.raises(InvalidRequest, match=r"content\[0\].text"):
        as_sent(messages(("user", [{"type": "text"}])))
    with pytest.raises(InvalidRequest, match="nothing but empty"):
        as_sent(messages(("assistant", "")))

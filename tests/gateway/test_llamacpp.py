"""llama.cpp's native API as its clients see it, through the production entry point and the fake engine."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.text.tokenizer import Tokenizer
from tests.gateway.harness import GatewayProcess
from tests.gateway.llamacpp_client import IM_END, IM_START, complete, say, sent_ids, stream
from tests.gateway.model_file import vocabulary, write_model_file

# ---- the shape of a completion


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_a_whole_completion(gateway: GatewayProcess, path: str) -> None:
    say(gateway, "a\nb")
    body = complete(gateway, "hi", path=path, n_predict=20, seed=5).json()
    assert (body["content"], body["tokens"], body["stop"]) == ("a\nb", [], True)
    assert (body["index"], body["id_slot"], body["model"], body["prompt"]) == (0, 0, "tiny", "hi")
    assert (body["tokens_predicted"], body["tokens_evaluated"], body["tokens_cached"]) == (3, 2, 5)
    assert (body["stop_type"], body["stopping_word"], body["truncated"], body["has_new_line"]) == ("eos", "", False, True)
    assert body["generation_settings"]["n_predict"] == 20
    assert body["generation_settings"]["seed"] == 5
    assert (body["timings"]["prompt_n"], body["timings"]["predicted_n"]) == (2, 3)
    assert "completion_probabilities" not in body


def test_a_streamed_completion(gateway: GatewayProcess) -> None:
    say(gateway, "né")
    *parts, end = stream(gateway, "hi", n_predict=9)
    assert "".join(part["content"] for part in parts) == "né"
    assert [token for part in parts for token in part["tokens"]] == list("né".encode())
    assert all(part["stop"] is False and "timings" not in part for part in parts)
    keys = {"index", "id_slot", "content", "tokens", "stop", "tokens_predicted", "tokens_evaluated"}
    assert all(set(part) == keys for part in parts)
    assert (end["content"], end["tokens"], end["stop"], end["stop_type"]) == ("", [], True, "eos")
    assert end["generation_settings"]["n_predict"] == 9


def test_the_stream_ends_without_a_mark(gateway: GatewayProcess) -> None:
    assert "[DONE]" not in complete(gateway, stream=True).text


@pytest.mark.parametrize("text", ["", "plain", "a\nb\n", "é👍" * 3])
def test_streamed_and_whole_say_the_same(gateway: GatewayProcess, text: str) -> None:
    say(gateway, text)
    whole = complete(gateway, return_tokens=True, stop=["zz"]).json()
    *parts, end = stream(gateway, stop=["zz"])
    assert "".join(part["content"] for part in parts) == whole["content"] == text
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"] == list(text.encode())
    for name in ("stop_type", "tokens_predicted", "has_new_line", "prompt", "truncated"):
        assert end[name] == whole[name]


def test_a_thinking_models_text_is_left_as_it_is(gateway: GatewayProcess) -> None:
    say(gateway, "<think>\nplan\n</think>\n\nanswer")
    assert complete(gateway).json()["content"] == "<think>\nplan\n</think>\n\nanswer"


def test_timings_per_token(gateway: GatewayProcess) -> None:
    say(gateway, "abc")
    *parts, _ = stream(gateway, timings_per_token=True)
    assert [part["timings"]["predicted_n"] for part in parts] == [1, 2, 3]
    assert all(isinstance(value, int | float) for part in parts for value in part["timings"].values())


@pytest.mark.parametrize("fields", [{"n_predict": 1}, {"n_predict": 0}, {}])
def test_times_are_finite_numbers(gateway: GatewayProcess, fields: dict[str, Any]) -> None:
    gateway.play(["line", "RESUME $N"], ["line", "DONE 0 $N 0.0 0.0 length 0 0 $N 0 0 0 0 0 0 id=$ID"])
    timings = complete(gateway, **fields).json()["timings"]
    assert (timings["prompt_n"], timings["cache_n"]) == (0, 2)
    assert all(isinstance(value, int | float) for value in timings.values())


def test_progress_of_the_prompt(gateway: GatewayProcess) -> None:
    gateway.play(["line", "RESUME 1"], ["progress", 2, 9], ["progress", 9, 9], ["text", "x", 0], ["done", "stop"])
    events = stream(gateway, return_progress=True)
    assert [event["prompt_progress"] for event in events if "prompt_progress" in event] == [
        {"total": 9, "cache": 1, "processed": 2, "time_ms": 20},
        {"total": 9, "cache": 1, "processed": 9, "time_ms": 90},
    ]
    assert not any("prompt_progress" in event for event in stream(gateway))


def test_a_silent_stream_says_that_it_lives(gateway: GatewayProcess) -> None:
    gateway.play(["progress", 1, 9], ["text", "x", 0], ["done", "stop"])
    assert complete(gateway, stream=True).text.startswith(": keep-alive\n\n")
    assert ": keep-alive" not in complete(gateway, stream=True, sse_ping_interval=-1).text


@pytest.mark.parametrize("streamed", [False, True])
def test_chosen_fields(gateway: GatewayProcess, streamed: bool) -> None:
    say(gateway, "abc")
    fields = ["stop_type", "generation_settings/n_predict", "nothing/there", "content/x"]
    reply = complete(gateway, n_predict=7, stream=streamed, response_fields=fields)
    end = json.loads(reply.text.split("data: ")[-1]) if streamed else reply.json()
    assert end == {"stop_type": "eos", "generation_settings/n_predict": 7}


# ---- prompts


def test_prompts_are_never_templated(gateway: GatewayProcess) -> None:
    complete(gateway, "<|im_start|>user\nq")
    assert sent_ids(gateway)[0] == IM_START
    assert sent_ids(gateway)[1:] == Tokenizer.from_metadata(vocabulary()).encode("user\nq")


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ([104, 105], [104, 105]),
        ([104, "x<|im_end|>", 105, ""], [104, ord("x"), IM_END, 105]),
        ({"prompt_string": "x"}, [ord("x")]),
        ([{"prompt_string": "x", "multimodal_data": []}], [ord("x")]),
        (["x"], [ord("x")]),
        ([[1, "x"]], [1, ord("x")]),
    ],
)
def test_forms_of_a_prompt(gateway: GatewayProcess, prompt: Any, ids: list[int]) -> None:
    assert isinstance(complete(gateway, prompt).json(), dict)
    assert sent_ids(gateway) == ids


def test_several_prompts(gateway: GatewayProcess) -> None:
    say(gateway, "ab")
    bodies = complete(gateway, ["x", [121], {"prompt_string": "z"}]).json()
    assert [(body["index"], body["prompt"]) for body in bodies] == [(0, "x"), (1, "y"), (2, "z")]
    assert {body["content"] for body in bodies} == {"ab"}
    ends = [event for event in stream(gateway, ["x", "y"]) if event["stop"]]
    assert [end["index"] for end in ends] == [0, 1]


@pytest.mark.parametrize(
    ("prompt", "path"),
    [
        (None, "prompt"),
        ("", "prompt"),
        ([], "prompt"),
        ([[]], "prompt"),
        (["x", ""], "prompt[1]"),
        ([1, 322], "prompt[1]"),
        ([1, -1], "prompt[1]"),
        ([["a", 5], [1, 999]], "prompt[1][1]"),
        ([1, True], "prompt[1]"),
        ([1, 1.5], "prompt[1]"),
        ([1, None], "prompt[1]"),
        (5, "prompt"),
        ({"text": "x"}, "prompt"),
        ({"prompt_string": 5}, "prompt.prompt_string"),
        ({"prompt_string": "x", "multimodal_data": ["AA"]}, "prompt.multimodal_data"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_prompts_that_are_refused(gateway: GatewayProcess, prompt: Any, path: str, streamed: bool) -> None:
    reply = complete(gateway, prompt, stream=streamed)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert error["message"].startswith(path)
    assert gateway.received() == []


@pytest.mark.parametrize("streamed", [False, True])
def test_a_prompt_that_is_too_long(gateway: GatewayProcess, streamed: bool) -> None:
    reply = complete(gateway, ["short", [5] * 4096], stream=streamed)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == ("exceed_context_size_error", 4096, 4096)
    assert gateway.received() == []
    assert complete(gateway).status_code == 200


def test_the_begin_of_text_token(start_gateway: Callable[..., GatewayProcess], tmp_path: Path) -> None:
    metadata = vocabulary() | {"tokenizer.ggml.add_bos_token": True}
    gateway = start_gateway(model=write_model_file(tmp_path / "bos.gguf", metadata))
    gateway.wait_ready()
    bos = metadata["tokenizer.ggml.bos_token_id"]
    for prompt in ("x", ["x", 1], [1, "x"], [1]):
        complete(gateway, prompt)
    assert [sent_ids(gateway, number) for number in range(4)] == [[bos, 120], [bos, 120, 1], [1, 120], [1]]
    assert complete(gateway, "").status_code == 200
    assert gateway.request("POST", "/tokenize", json_body={"content": "x", "add_special": True}).json()["tokens"] == [bos, 120]
    assert gateway.request("POST", "/tokenize", json_body={"content": "x"}).json()["tokens"] == [120]


# ---- ends


def test_stop_by_a_word(gateway: GatewayProcess) -> None:
    gateway.play(["text", "one\n\nUser: two", 0], ["sleep", 30], ["done", "stop"])
    body = complete(gateway, stop=["\n\nUser:", "", "zz"], return_tokens=True, n_probs=1).json()
    assert (body["content"], body["stop_type"], body["stopping_word"]) == ("one", "word", "\n\nUser:")
    assert body["tokens"] == list(b"one")
    assert len(body["completion_probabilities"]) == 3
    assert body["tokens_predicted"] == 10
    assert [line.split()[0::2] for line in gateway.received()[1:]] == [["STOP", "keep=10"]]


def test_nothing_of_a_stop_word_is_streamed(gateway: GatewayProcess) -> None:
    say(gateway, "one\n\nUse\n\nUser:")
    *parts, end = stream(gateway, stop="\n\nUser:")
    assert "".join(part["content"] for part in parts) == "one\n\nUse"
    assert bytes(token for part in parts for token in part["tokens"]) == b"one\n\nUse"
    assert end["stop_type"] == "word"


@pytest.mark.parametrize("cap", [{}, {"n_predict": 7}])
def test_half_a_stop_word_at_the_end_is_text(gateway: GatewayProcess, cap: dict[str, int]) -> None:
    say(gateway, "text\n\nU")
    *parts, end = stream(gateway, stop=["\n\nUser:"], **cap)
    assert "".join(part["content"] for part in parts) == "text\n\nU"
    assert len([token for part in parts for token in part["tokens"]]) == 7
    assert end["stop_type"] == ("limit" if cap else "eos")


@pytest.mark.parametrize("name", ["n_predict", "max_tokens", "max_completion_tokens"])
def test_stop_by_the_limit(gateway: GatewayProcess, name: str) -> None:
    say(gateway, "abcdef")
    body = complete(gateway, **{name: 3}).json()
    assert (body["content"], body["stop_type"], body["truncated"]) == ("abc", "limit", False)
    assert gateway.received()[0].startswith("GEN 3 ")


def test_the_end_of_the_context_truncates(gateway: GatewayProcess) -> None:
    say(gateway, "abcdef", "length")
    for fields in ({}, {"n_predict": -1}, {"n_predict": 99}):
        body = complete(gateway, **fields).json()
        assert (body["stop_type"], body["truncated"]) == ("limit", True)
    assert gateway.received()[1].startswith("GEN 2147483647 ")


def test_a_limit_of_nothing_reads_the_prompt(gateway: GatewayProcess) -> None:
    body = complete(gateway, n_predict=0).json()
    assert (body["content"], body["tokens_predicted"], body["stop_type"], body["truncated"]) == ("", 0, "limit", False)
    assert gateway.received()[0].startswith("GEN 0 ")


@pytest.mark.parametrize(
    ("text", "blanks", "content"),
    [
        ("a\n  b\n c\n", 2, "a\n  b\n "),
        ("a\n  b\n\n  c", 2, "a\n  b\n"),
        ("a\n \tb", 2, "a\n \tb"),
        ("a\n   ", 4, "a\n   "),
        ("a\nb", 0, "a\nb"),
    ],
)
def test_lines_that_are_indented_too_little(gateway: GatewayProcess, text: str, blanks: int, content: str) -> None:
    say(gateway, text)
    body = complete(gateway, n_indent=blanks, return_tokens=True).json()
    assert (body["content"], bytes(body["tokens"]).decode()) == (content, content)
    assert body["stop_type"] == ("limit" if content != text else "eos")
    *parts, end = stream(gateway, n_indent=blanks)
    assert "".join(part["content"] for part in parts) == content
    assert (end["stop_type"], end["truncated"]) == (body["stop_type"], False)


def test_a_line_end_after_the_time_is_the_end(gateway: GatewayProcess) -> None:
    gateway.play(["text", "a\n", 0], ["sleep", 0.2], ["text", "b\nc", 0], ["sleep", 30], ["done", "stop"])
    body = complete(gateway, t_max_predict_ms=20).json()
    assert (body["content"], body["stop_type"], body["truncated"]) == ("a\nb\n", "limit", False)
    say(gateway, "a\nb\nc")
    assert complete(gateway, t_max_predict_ms=60_000).json()["content"] == "a\nb\nc"


def test_the_end_of_turn_token(gateway: GatewayProcess) -> None:
    gateway.play(["text", "ab", 0], ["token", IM_END], ["done", "stop"])
    body = complete(gateway, return_tokens=True).json()
    assert (body["content"], body["tokens"], body["tokens_predicted"]) == ("ab", [97, 98, IM_END], 3)


def test_end_of_turn_tokens_can_be_ignored(gateway: GatewayProcess) -> None:
    gateway.play(["text", "a", 0], ["token", IM_END], ["text", "b", 0], ["done", "stop"])
    body = complete(gateway, ignore_eos=True, n_predict=3).json()
    assert (body["content"], body["stop_type"], body["tokens_predicted"]) == ("ab", "limit", 3)
    assert "ignore_eos=1" in gateway.received()[0]


# ---- what the engine is asked


def test_everything_reaches_the_engine(gateway: GatewayProcess) -> None:
    fields = {
        "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.25, "seed": 7, "repeat_last_n": 32, "repeat_penalty": 1.5,
        "frequency_penalty": 0.5, "presence_penalty": -0.5, "cache_prompt": False, "n_probs": 2,
    }  # fmt: skip
    settings = complete(gateway, **fields).json()["generation_settings"]
    words = gateway.received()[0].split()
    for word in (
        "temperature=0.5", "top_k=3", "top_p=0.9", "min_p=0.25", "seed=7", "penalty_last_n=32", "penalty_repeat=1.5",
        "penalty_freq=0.5", "penalty_present=-0.5", "cache=0", "logprobs=2",
    ):  # fmt: skip
        assert word in words
    assert {name: settings[name] for name in fields if name != "cache_prompt"} == {
        name: value for name, value in fields.items() if name != "cache_prompt"
    }


def test_values_out_of_range_move_to_its_border(gateway: GatewayProcess) -> None:
    complete(gateway, temperature=-1, top_k=-1, top_p=7, seed=-1, repeat_last_n=-1)
    words = gateway.received()[0].split()
    assert not any(word.startswith(("temperature", "top_p", "seed")) for word in words)
    assert "top_k=0" in words
    assert "penalty_last_n=2147483647" in words


def test_the_seed_of_the_clock_is_told(gateway: GatewayProcess) -> None:
    gateway.play(["line", "DONE 0 $N 0.0 0.0 length 0 0 0 0 0 0 0 0 0 id=$ID seed=42"])
    assert complete(gateway, temperature=1).json()["generation_settings"]["seed"] == 42


def test_the_list_of_samplers(gateway: GatewayProcess) -> None:
    complete(gateway, temperature=0.5, top_k=5, top_p=0.5, min_p=0.5, samplers=["dry", "top_k", "typ_p", "temperature"])
    complete(gateway, temperature=0.5, top_k=5, top_p=0.5, min_p=0.5, samplers="kt")
    for line in gateway.received():
        assert "top_k=5" in line
        assert "top_p" not in line
        assert "min_p" not in line
    assert complete(gateway, temperature=0.5, top_k=5, samplers=["temperature", "top_k"]).status_code == 400
    assert complete(gateway, temperature=0, top_k=5, samplers=["temperature", "top_k"]).status_code == 200
    assert complete(gateway, temperature=1, top_k=5, samplers=["temperature", "top_k"]).status_code == 200
    assert complete(gateway, samplers=["magic"]).json()["error"]["message"].startswith("samplers[0]")


def test_probabilities(gateway: GatewayProcess) -> None:
    say(gateway, "né")
    body = complete(gateway, n_probs=2).json()
    first = body["completion_probabilities"][0]
    assert {name: first[name] for name in ("id", "token", "bytes", "logprob")} == {
        "id": ord("n"), "token": "n", "bytes": [ord("n")], "logprob": -0.5,
    }  # fmt: skip
    assert [entry["token"] for entry in first["top_logprobs"]] == ["n", "x"]
    assert [entry["bytes"] for entry in body["completion_probabilities"]] == [[0x6E], [0xC3], [0xA9]]
    *parts, end = stream(gateway, n_probs=2)
    assert [entry for part in parts for entry in part["completion_probabilities"]] == body["completion_probabilities"]
    assert "completion_probabilities" not in end


# ---- a request that was saved for another engine

SAVED = {
    "n_predict": 4, "seed": -1, "temperature": 0.8, "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "top_k": 40,
    "top_p": 0.95, "min_p": 0.05, "xtc_probability": 0.0, "xtc_threshold": 0.1, "typical_p": 1.0, "repeat_last_n": 64,
    "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "dry_multiplier": 0.0, "dry_base": 1.75,
    "dry_allowed_length": 2, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\n"], "mirostat": 0, "mirostat_tau": 5.0,
    "mirostat_eta": 0.1, "stop": [], "n_keep": 0, "n_discard": 0, "ignore_eos": False, "stream": False, "n_probs": 0,
    "min_keep": 0, "grammar": "", "samplers": ["penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
    "id_slot": -1, "cache_prompt": True, "logit_bias": [], "lora": [], "n_cmpl": 1, "n_indent": 0, "t_max_predict_ms": 0,
    "image_data": [], "post_sampling_probs": False, "some_future_field": {"x": [1]}, "response_fields": [],
    "speculative.n_max": 16,
}  # fmt: skip


def test_a_saved_request_is_replayed(gateway: GatewayProcess) -> None:
    assert complete(gateway, **SAVED).status_code == 200
    assert complete(gateway, **dict.fromkeys(SAVED)).status_code == 200  # null is absent


def test_the_settings_of_a_reply_are_a_request(gateway: GatewayProcess) -> None:
    settings = complete(gateway, seed=3, n_predict=5).json()["generation_settings"]
    assert complete(gateway, **settings).json()["generation_settings"] == settings
    assert gateway.received()[0].split()[3:] == gateway.received()[1].split()[3:]


@pytest.mark.parametrize(
    "fields",
    [
        {"grammar": "root ::= x"}, {"json_schema": {}}, {"logit_bias": [[5, -1]]}, {"logit_bias": {"5": -1}},
        {"lora": [{"id": 0, "scale": 1.0}]}, {"image_data": [{"id": 1}]}, {"mirostat": 2}, {"dynatemp_range": 0.5},
        {"typical_p": 0.5}, {"top_n_sigma": 1.0}, {"xtc_probability": 0.5}, {"dry_multiplier": 0.8},
        {"adaptive_target": 0.5}, {"n_cmpl": 2}, {"n": 2},
        {"post_sampling_probs": True},
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named(gateway: GatewayProcess, fields: dict[str, Any]) -> None:
    reply = complete(gateway, **fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith(next(iter(fields)))
    assert gateway.received() == []


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"n_predict": "9"}, "n_predict"), ({"n_predict": -3}, "n_predict"), ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop[1]"), ({"temperature": "hot"}, "temperature"), ({"stream": "yes"}, "stream"),
        ({"n_probs": 65}, "n_probs"), ({"n_probs": -1}, "n_probs"), ({"logprobs": 99}, "logprobs"),
        ({"sse_ping_interval": 0}, "sse_ping_interval"), ({"stop": ["x"] * 65}, "stop"), ({"mirostat": "x"}, "mirostat"),
        ({"lora": [{"scale": 1}]}, "lora[0]"), ({"seed": 1.5}, "seed"), ({"response_fields": "content"}, "response_fields"),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(gateway: GatewayProcess, fields: dict[str, Any], path: str) -> None:
    reply = complete(gateway, **fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith(path)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000])
@pytest.mark.parametrize("path", ["/completion", "/tokenize", "/detokenize", "/apply-template"])
def test_bodies_that_are_no_json_object(gateway: GatewayProcess, path: str, body: bytes) -> None:
    reply = gateway.request("POST", path, body=body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert error["message"]


# ---- errors of the engine


def test_an_error_of_the_engine(gateway: GatewayProcess) -> None:
    gateway.play(["error", "non_finite_logits", "the logits hold NaN"])
    for streamed in (False, True):
        reply = complete(gateway, stream=streamed)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, 503)
        assert "NaN" in reply.json()["error"]["message"]


def test_an_error_in_mid_stream(gateway: GatewayProcess) -> None:
    gateway.play(["text", "ab", 0], ["error", "out_of_memory", "no room"])
    *parts, last = stream(gateway)
    assert "".join(part["content"] for part in parts) == "ab"
    assert "no room" in last["error"]["message"]
    say(gateway, "fine")
    assert complete(gateway).json()["content"] == "fine"


def test_while_the_model_loads(start_gateway: Callable[..., GatewayProcess]) -> None:
    gateway = start_gateway(script=json.dumps({"start": [["sleep", 30]]}))
    reply = complete(gateway)
    assert reply.status_code == 503
    error = reply.json()["error"]
    assert (error["code"], error["message"], error["type"]) == (503, "Loading model", "unavailable_error")
    for path in ("/props", "/slots", "/v1/health"):
        reply = gateway.request("GET", path)
        assert (reply.status_code, reply.json()["error"]["type"]) == (503, "unavailable_error")

"""The small routes of llama.cpp's native API: tokens, templates, properties, slots; and infill."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import GatewayProcess, wait_until
from tests.gateway.llamacpp_client import IM_END, sent_ids
from tests.gateway.model_file import CONTROL, vocabulary, write_model_file

# ---- tokens


@pytest.mark.parametrize("text", ["", "plain text\n", "á 媽 🤗", "<|im_start|>user\n<|im_end|>", "  two  blanks "])
def test_detokenize_undoes_tokenize(gateway: GatewayProcess, text: str) -> None:
    for special in (True, False):
        ids = gateway.request("POST", "/tokenize", json_body={"content": text, "parse_special": special}).json()["tokens"]
        assert gateway.request("POST", "/detokenize", json_body={"tokens": ids}).json() == {"content": text}


def test_special_tokens_are_parsed_unless_told_not_to(gateway: GatewayProcess) -> None:
    def ids(**fields: Any) -> list[int]:
        return gateway.request("POST", "/tokenize", json_body={"content": "<|im_end|>", **fields}).json()["tokens"]

    assert ids() == [IM_END]
    assert len(ids(parse_special=False)) > 1


def test_pieces(gateway: GatewayProcess) -> None:
    fields = {"content": "aá<|im_end|>", "with_pieces": True}
    assert gateway.request("POST", "/tokenize", json_body=fields).json()["tokens"] == [
        {"id": 97, "piece": "a"},
        {"id": 0xC3, "piece": [195]},
        {"id": 0xA1, "piece": [161]},
        {"id": IM_END, "piece": "<|im_end|>"},
    ]


def test_tokens_of_mixed_content_and_of_none(gateway: GatewayProcess) -> None:
    assert gateway.request("POST", "/tokenize", json_body={"content": ["a", 5, "b"]}).json() == {"tokens": [97, 5, 98]}
    assert gateway.request("POST", "/tokenize", json_body={}).json() == {"tokens": []}
    assert gateway.request("POST", "/detokenize", json_body={}).json() == {"content": ""}


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": [999]}, "content[0]"),
        ("/tokenize", {"content": "x", "add_special": "no"}, "add_special"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1, "x"]}, "tokens[1]"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ],
)
def test_refusals_of_the_small_routes(gateway: GatewayProcess, path: str, fields: dict[str, Any], name: str) -> None:
    reply = gateway.request("POST", path, json_body=fields)
    assert reply.status_code == 400
    assert name in reply.json()["error"]["message"]


def test_the_template_as_text(gateway: GatewayProcess) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a <|im_end|> b"}]
    prompt = gateway.request("POST", "/apply-template", json_body={"messages": messages}).json()["prompt"]
    turns = ["<|im_start|>system\nbe brief<|im_end|>", "<|im_start|>user\na <|im_end|> b<|im_end|>", "<|im_start|>assistant\n"]
    assert prompt == "\n".join(turns)
    assert gateway.received() == []


# ---- properties and slots


@pytest.mark.parametrize("path", ["/props", "/v1/props"])
def test_properties(gateway: GatewayProcess, path: str) -> None:
    props = gateway.request("GET", path).json()
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert props["default_generation_settings"]["params"]["n_predict"] == -1
    assert (props["total_slots"], props["model_alias"]) == (1, "tiny")
    assert props["model_path"].endswith("tiny.gguf")
    assert "<|im_start|>" in props["chat_template"]
    assert props["eos_token"] == "<|im_end|>"
    assert gateway.request("POST", path, json_body={}).status_code in (405, 501)


def test_the_slot_is_busy_while_a_request_runs(gateway: GatewayProcess) -> None:
    assert gateway.request("GET", "/slots").json() == [{"id": 0, "n_ctx": 4096, "speculative": False, "is_processing": False}]
    gateway.play(["text", "abc", 0], ["sleep", 30], ["done", "stop"])
    connection = gateway.open_chat(stream=True)
    try:
        wait_until(lambda: gateway.request("GET", "/slots").json()[0].get("next_token", [{}])[0].get("n_decoded") == 3)
        slot = gateway.request("GET", "/slots").json()[0]
        assert slot["is_processing"] is True
        assert slot["n_prompt_tokens"] > 3
        assert gateway.request("GET", "/slots?fail_on_no_slot=1").status_code == 503
    finally:
        connection.close()
    wait_until(lambda: not gateway.request("GET", "/slots").json()[0]["is_processing"])


@pytest.mark.parametrize(("method", "path"), [("POST", "/props"), ("POST", "/slots/0?action=save"), ("POST", "/infill")])
def test_what_is_not_there_says_so(gateway: GatewayProcess, method: str, path: str) -> None:
    reply = gateway.request(method, path, json_body={"input_prefix": "a", "input_suffix": "b"})
    assert reply.status_code == 501
    error = reply.json()["error"]
    assert (error["code"], error["type"]) == (501, "not_supported_error")


# ---- infill


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file whose vocabulary has the tokens of one family."""
    metadata = vocabulary()
    names = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"]
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *names]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], *[CONTROL] * len(names)]
    return write_model_file(tmp_path_factory.mktemp("coder") / "coder.gguf", metadata)


def test_infill(start_gateway: Callable[..., GatewayProcess], coder: Path) -> None:
    gateway = start_gateway(model=coder)
    gateway.wait_ready()
    pre, suf, mid, repo, sep = range(320, 325)
    body = {"input_prefix": "a<|fim_middle|>", "input_suffix": "b", "prompt": "c", "n_predict": 5}
    reply = gateway.request("POST", "/infill", json_body=body)
    assert reply.json()["content"] == "ok"
    ids = sent_ids(gateway)
    assert (ids[0], ids[1], ids[-4:]) == (pre, ord("a"), [ord("c"), suf, ord("b"), mid])
    assert ids.count(mid) == 1  # a marker in the text is text

    extra = [{"text": "x", "filename": "f"}, {"text": "y"}]
    gateway.request("POST", "/infill", json_body={**body, "input_prefix": "a", "input_extra": extra})
    ids = sent_ids(gateway, 1)
    assert (ids[0], ids.count(sep)) == (repo, 3)
    assert ids[-6:] == [pre, 97, 99, suf, 98, mid]

    long = {"input_prefix": "p" * 3000 + "q", "input_suffix": "r" + "s" * 3000, "n_predict": 96}
    assert gateway.request("POST", "/infill", json_body=long).status_code == 200
    ids = sent_ids(gateway, 2)
    assert 3900 < len(ids) <= 4000
    assert ids[ids.index(suf) - 1] == ord("q")
    assert ids[ids.index(suf) + 1] == ord("r")

    editor = {
        "input_prefix": "a\n", "input_suffix": "\nb\n", "input_extra": [{"text": "x", "time": [1, 2], "filename": "f"}],
        "prompt": "  ", "n_predict": 5, "n_indent": 2, "top_k": 40, "top_p": 0.99, "stream": False,
        "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000,
        "response_fields": ["content", "timings/prompt_n", "truncated", "tokens_cached"],
    }  # fmt: skip
    reply = gateway.request("POST", "/infill", json_body=editor)
    assert set(reply.json()) == set(editor["response_fields"])
    warm_up = {**editor, "n_predict": 0, "samplers": [], "t_max_prompt_ms": 1, "t_max_predict_ms": 1, "response_fields": [""]}
    assert gateway.request("POST", "/infill", json_body=warm_up).json() == {}

    for wrong, name in (
        ({"input_suffix": "b"}, "input_prefix"),
        ({"input_prefix": "a"}, "input_suffix"),
        ({**body, "prompt": [1]}, "prompt"),
        ({**body, "input_extra": {}}, "input_extra"),
        ({**body, "input_extra": [{"filename": "ok"}]}, "input_extra[0]"),
        ({**body, "input_extra": [{"filename": 5, "text": "x"}]}, "input_extra[0].filename"),
    ):
        reply = gateway.request("POST", "/infill", json_body=wrong)
        assert reply.status_code == 400
        assert reply.json()["error"]["message"].startswith(name)

"""From a request to prompt ids with a whole model: strict templates, what is dropped, what is refused."""

import json
from pathlib import Path

import pytest

from gateway.errors import InvalidRequest
from gateway.model import ServedModel, load_model
from packs.manifest import ModelSource
from tests.gateway.model_file import STRICT_TEMPLATE, vocabulary, write_model_file

FORGETFUL = (
    "{% if messages[0].role == 'system' %}[{{ messages[0].content }}]{% endif %}"
    "{% for m in messages if m.role != 'system' %}({{ m.role }}:{{ m.content }}){% endfor %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "({{ m.role }}:{{ m.content }}){% endfor %}"
)


def model(path: Path, template: str, **metadata: object) -> ServedModel:
    file = write_model_file(path / "m.gguf", {**vocabulary(template=template), **metadata})
    return load_model(ModelSource(model=file, name="m", sampling={"top_p": 0.9}), None)


def text(served: ServedModel, *turns: tuple[str, str]) -> str:
    from gateway.chat.request import parse_chat_request

    body = {"messages": [{"role": role, "content": content} for role, content in turns]}
    prompt = served.prompt(parse_chat_request(json.dumps(body).encode(), served.sampling))
    return b"".join(served.vocabulary.token_bytes(i) or served.vocabulary.tokens[i].encode() for i in prompt.tokens).decode()


def test_a_strict_template_gets_what_it_can_take(tmp_path: Path) -> None:
    served = model(tmp_path, STRICT_TEMPLATE)
    turn = "<|im_start|>{}\n{}<|im_end|>\n"
    assert text(served, ("user", "a"), ("user", "b")) == turn.format("user", "a\n\nb") + "<|im_start|>assistant\n"
    late = text(served, ("user", "a"), ("assistant", "x"), ("developer", "s"), ("user", "b"))
    expected = [("system", "s"), ("user", "a"), ("assistant", "x"), ("user", "b")]
    assert late == "".join(turn.format(*pair) for pair in expected) + "<|im_start|>assistant\n"


def test_what_a_strict_template_cannot_take_is_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="The user speaks first") as caught:
        text(model(tmp_path, STRICT_TEMPLATE), ("assistant", "x"), ("user", "a"))
    assert caught.value.status == 400


def test_no_system_message_is_lost(tmp_path: Path) -> None:
    served = model(tmp_path, FORGETFUL)
    assert text(served, ("user", "a"), ("system", "s"), ("user", "b")) == "[s](user:a\n\nb)"
    assert text(served, ("system", "r"), ("system", "s"), ("user", "b")) == "[r\n\ns](user:b)"
    assert text(served, ("user", "a"), ("user", "b")) == "(user:a)(user:b)"
    assert text(model(tmp_path, NO_SYSTEM), ("system", "s"), ("user", "a")) == "(user:s\n\na)"


def test_defaults_of_file_and_pack(tmp_path: Path) -> None:
    served = model(tmp_path, STRICT_TEMPLATE, **{"general.sampling.temp": 0.25})
    assert (served.sampling.temperature, served.sampling.top_p) == (0.25, 0.9)
    assert served.tags is None

"""The generators behind the embedded model's training text, and the pack that came of it."""

import json
import random
import re
from pathlib import Path

import jinja2
import numpy as np
import pytest

from engine.gguf import open_model
from packs.manifest import resolve_model
from tools.tiny.calls import call_dialogue
from tools.tiny.quants import DECODE, ENCODE
from tools.tiny.render import TEMPLATE, render
from tools.tiny.stories import story_dialogue
from tools.tiny.sums import sum_dialogue

PACK = Path(__file__).parents[2] / "packs" / "tiny"
OPERATORS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "x": int.__mul__, "×": int.__mul__}


def test_sums_that_are_written_out_are_right():
    rng, seen = random.Random(1), 0
    for _ in range(2000):
        for message in sum_dialogue(rng):
            text = message["content"] + "\n" + message.get("reasoning_content", "")
            for a, op, b, result in re.findall(r"(?<![\d.+\-*x×] )(?<![\d.])(\d+) ([+\-*x×]) (\d+) = (-?\d+)(?![\d.])", text):
                assert OPERATORS[op](int(a), int(b)) == int(result), text
                seen += 1
    assert seen > 200


def test_calls_name_a_tool_that_was_given_with_its_parameters():
    rng, seen = random.Random(2), 0
    for _ in range(200):
        messages, tools = call_dialogue(rng)
        given = {(t.get("function") or t)["name"]: (t.get("function") or t)["parameters"]["properties"] for t in tools}
        for message in messages:
            for call in message.get("tool_calls", ()):
                assert call["arguments"].keys() <= given[call["name"]].keys()
                seen += 1
    assert seen > 50


@pytest.mark.parametrize("make", [sum_dialogue, call_dialogue, story_dialogue])
def test_a_seed_gives_the_same_dialogue(make):
    assert [make(random.Random(seed)) for seed in range(20)] == [make(random.Random(seed)) for seed in range(20)]


def test_the_packs_template_writes_what_the_training_text_was():
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template, rng = environment.from_string(TEMPLATE), random.Random(3)
    for _ in range(60):
        messages, tools = call_dialogue(rng)
        assert template.render(messages=messages, tools=tools) == render(messages, tools)
        messages = sum_dialogue(rng)
        assert template.render(messages=messages) == render(messages)


@pytest.mark.parametrize("name", sorted(ENCODE))
def test_block_encoders_round_to_the_nearest_of_their_grid(name):
    x = np.random.default_rng(4).normal(size=(5, 96)).astype(np.float32)
    again = DECODE[name](ENCODE[name](x))
    step = np.abs(x).reshape(5, 3, 32).max(-1).repeat(32, 1) / {"Q8_0": 127, "Q4_0": 8}[name]
    assert (np.abs(again - x) <= step * (0.51 if name == "Q8_0" else 1.01)).all()


def test_the_embedded_pack_is_whole_and_small():
    source = resolve_model(PACK)
    assert source.model.stat().st_size <= 24e6
    with open_model(source.model) as files:
        assert files.metadata["general.architecture"] == "qwen4exp"
        assert files.metadata["qwen4exp.nextn_predict_layers"] == 1
        assert "blk.8.nextn.eh_proj.weight" in files.tensors
        assert len(files.array("tokenizer.ggml.tokens")) == files.tensors["token_embd.weight"].shape[0] == 4096

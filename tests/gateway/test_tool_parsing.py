"""Tool calls in a reply: every split of a text gives the same, values have their types, and nothing is ever lost."""

import json
from itertools import combinations, pairwise
from typing import Any

import pytest

from gateway.parsing.tools import hermes_json, qwen_xml
from gateway.parsing.tools.blocks import Call
from gateway.parsing.tools.formats import ToolFormat, tool_format, tool_parser

SCHEMA = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "n": {"type": "integer"},
        "b": {"type": "boolean"},
        "list": {"type": "array"},
        "maybe": {"type": ["string", "null"]},
        "either": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/Name"}]},
        "colour": {"enum": ["red", "1"]},
        "circle": {"anyOf": [{"$ref": "#/properties/circle"}, {"$ref": "#/properties/n"}]},
        "loop": {"$ref": "#/properties/loop"},
    },
    "$defs": {"Name": {"type": "string"}},
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]


def run(read: ToolFormat, pieces: list[str]) -> list[Any]:
    """Texts as strings (neighbours joined), calls as (name, arguments)."""
    parser = tool_parser(read, TOOLS)
    out: list[Any] = []
    for found in (*(parser.feed(piece) for piece in pieces), parser.finish()):
        for item in found:
            if isinstance(item, Call):
                out.append((item.name, json.loads(item.arguments)))
            elif out and isinstance(out[-1], str):
                out[-1] += item
            else:
                out.append(item)
    return out


def xml(*parameters: tuple[str, str], name: str = "f") -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def hermes(arguments: Any, name: str = "f") -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


XML, HERMES = qwen_xml.read, hermes_json.read
BROKEN = "<tool_call>\n<function=f>\nno parameter\n</function>\n</tool_call>"
CASES = [
    (XML, "", []),
    (XML, "no call, 1 < 2 <tool", ["no call, 1 < 2 <tool"]),
    (XML, "ends with blanks \n", ["ends with blanks \n"]),
    (XML, xml(("s", "x")), [("f", {"s": "x"})]),
    (XML, "I look.\n\n" + xml(("n", "5")) + "\n" + xml(("b", "true")) + "\nDone. ",
     ["I look.", ("f", {"n": 5}), ("f", {"b": True}), "Done. "]),
    (XML, xml() + "\n", [("f", {})]),
    (XML, xml(("s", "one\n\n  two ")), [("f", {"s": "one\n\n  two "})]),
    (XML, xml(("s", "")), [("f", {"s": ""})]),
    (XML, xml(("s", "a </tool_call> b")), [("f", {"s": "a </tool_call> b"})]),
    (XML, xml(("s", "a </parameter> b"), ("n", "1")), [("f", {"s": "a </parameter> b", "n": 1})]),
    (XML, "a \n" + BROKEN + " b", ["a \n" + BROKEN + " b"]),
    (XML, BROKEN + "\n" + xml(("n", "2")), [BROKEN, ("f", {"n": 2})]),
    (XML, "x <tool_call>\n<function=f>\n<parameter=s>\nhal", ["x <tool_call>\n<function=f>\n<parameter=s>\nhal"]),
    (XML, "<tool_call> oh " + xml(("n", "3")), ["<tool_call> oh", ("f", {"n": 3})]),
    (XML, xml(("n", "3")) + "<tool_call>", [("f", {"n": 3}), "<tool_call>"]),
    (XML, xml(("n", "3")) + " tail </tool_call>", [("f", {"n": 3}), "tail </tool_call>"]),
    (HERMES, "Yes.\n" + hermes({"s": "x", "n": 5}), ["Yes.", ("f", {"s": "x", "n": 5})]),
    (HERMES, hermes({"s": "</tool_call>{"}) + hermes({}), [("f", {"s": "</tool_call>{"}), ("f", {})]),
    (HERMES, '<tool_call>{"name": "f"}</tool_call>', [("f", {})]),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [("f", {"a": 1})]),
    (HERMES, '<tool_call>{"name": "f", </tool_call>.', ['<tool_call>{"name": "f", </tool_call>.']),
    (HERMES, '<tool_call>{"name": "f</tool_call> ', ['<tool_call>{"name": "f</tool_call> ']),
]  # fmt: skip


@pytest.mark.parametrize(("read", "text", "expected"), CASES)
def test_every_split_gives_the_same(read: ToolFormat, text: str, expected: list[Any]) -> None:
    for count in range(min(3, len(text))):
        for cuts in combinations(range(1, len(text)), count):
            pieces = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
            assert run(read, pieces) == expected, pieces
    assert run(read, list(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "5",
        '{"name": 5}',
        '{"name": ""}',
        '{"name": "f", "arguments": [1]}',
        '{"arguments": {}}',
        '{"name": "f", "arguments": {"x": NaN}}',
        '{"name": "f", "arguments": {"x": "\\ud800"}}',
        '{"name": "f", "arguments": "{\\"a"}',
        "[" * 100_000,
    ],
    ids=map(str, range(10)),
)
def test_json_that_is_no_call_stays_text(text: str) -> None:
    whole = f"<tool_call>{text}</tool_call>"
    assert run(HERMES, [whole]) == [whole]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("s", "5", "5"),
        ("s", '"quoted"', '"quoted"'),
        ("n", "-5", -5),
        ("n", "many", "many"),
        ("b", "false", False),
        ("list", '["a", 1]', ["a", 1]),
        ("list", "[" * 100_000, "[" * 100_000),
        ("maybe", "null", None),
        ("maybe", "5", "5"),
        ("either", "5", 5),
        ("either", "true", "true"),
        ("either", "x", "x"),
        ("colour", "1", "1"),
        ("loop", "[1]", [1]),
        ("circle", "5", 5),
        ("unknown", "5", 5),
        ("unknown", "x y", "x y"),
    ],
    ids=map(str, range(18)),
)
def test_values_have_the_type_of_the_schema(name: str, text: str, value: Any) -> None:
    assert run(XML, [xml((name, text))]) == [("f", {name: value})]


def test_a_function_that_was_not_offered_is_a_call_all_the_same() -> None:
    assert run(XML, [xml(("n", "5"), name="other")]) == [("other", {"n": 5})]


def test_text_and_calls_are_not_held_longer_than_needed() -> None:
    parser = tool_parser(XML, TOOLS)
    assert parser.feed("one two") == ["one two"]
    assert parser.feed(" <tool_") == []
    assert parser.feed("kit>") == [" <tool_kit>"]
    assert parser.feed(xml(("s", "x"))) == [Call("f", '{"s": "x"}')]


def test_the_template_shows_the_format() -> None:
    assert tool_format("... <tool_call>\n<function=NAME> ...") is XML
    assert tool_format('<tool_call>\n{"name": x, "arguments": y}') is HERMES
    assert tool_format("{{ message.content }}") is None

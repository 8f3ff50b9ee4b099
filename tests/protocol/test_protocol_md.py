"""The contract's own examples are in its grammar."""

import re
from pathlib import Path

import pytest

from engine.protocol import BadEvent, Unknown, format_command, format_event, parse_command, parse_event

TEXT = (Path(__file__).parents[2] / "protocol.md").read_text(encoding="utf-8")


def _lines(language: str) -> list[str]:
    blocks = re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("line", _lines("client"))
def test_client_examples_parse(line: str) -> None:
    command = parse_command(line)
    assert parse_command(format_command(command)) == command


@pytest.mark.parametrize("line", _lines("engine"))
def test_engine_examples_parse(line: str) -> None:
    event = parse_event(line)
    assert not isinstance(event, Unknown)
    assert parse_event(format_event(event)) == event


def test_every_verb_has_an_example() -> None:
    verbs = {line.split()[0] for language in ("client", "engine") for line in _lines(language)}
    assert verbs == {
        "GEN", "STOP", "PING", "STATS", "QUIT", "INFO", "READY", "RESUME", "PP", "T", "DONE", "ERR", "PONG",
    }  # fmt: skip


def test_every_fence_is_of_a_tested_language() -> None:
    assert set(re.findall(r"^```(\w+)$", TEXT, re.MULTILINE)) == {"client", "engine"}


@pytest.mark.parametrize(
    "line", ["PP 1 2", "T", "T x", "T 1 -1 5", "DONE 1 2 3 4", "DONE 1 2 3 4 happy", "READY", "RESUME x", "ERR"]
)
def test_damaged_events_are_refused(line: str) -> None:
    with pytest.raises(BadEvent):
        parse_event(line)

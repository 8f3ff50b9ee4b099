"""The thinking channel: every split of a reply gives the same, and tags elsewhere stay text."""

from itertools import combinations, pairwise

import pytest

from gateway.parsing.reasoning import Channel, ReasoningParser, ThinkingTags


def run(pieces: list[str], *, opened: bool = False, tags: ThinkingTags | None = ThinkingTags()) -> tuple[str, str]:  # noqa: B008
    """(reasoning, content) of a reply."""
    parser = ReasoningParser(tags, opened=opened)
    out = {Channel.REASONING: "", Channel.CONTENT: ""}
    for piece in pieces:
        for channel, text in parser.feed(piece):
            assert text
            out[channel] += text
    for channel, text in parser.finish():
        out[channel] += text
    return out[Channel.REASONING], out[Channel.CONTENT]


CASES = [
    (True, "plan</think>answer", "plan", "answer"),
    (True, "plan\n</think>\n\nanswer\n", "plan", "answer\n"),
    (True, "\nplan", "plan", ""),
    (True, "never closed </thin", "never closed </thin", ""),
    (True, "ends with breaks\n\n", "ends with breaks\n\n", ""),
    (True, "</think>answer", "", "answer"),
    (True, "a < b </thing> </think>c", "a < b </thing> ", "c"),
    (False, "<think>\nplan\n</think>\n\nanswer", "plan", "answer"),
    (False, " \n<think>x</think>y", "x", "y"),
    (False, "answer with `<think>` quoted</think>", "", "answer with `<think>` quoted</think>"),
    (False, "```\n<think>\n</think>\n```", "", "```\n<think>\n</think>\n```"),
    (False, "<thinking is fun", "", "<thinking is fun"),
    (False, "<tool", "", "<tool"),
    (False, "  a < b", "", "  a < b"),
    (False, "\n", "", "\n"),
    (False, "", "", ""),
]


@pytest.mark.parametrize(("opened", "text", "reasoning", "content"), CASES)
def test_every_split_gives_the_same(opened: bool, text: str, reasoning: str, content: str) -> None:
    for count in range(min(3, len(text))):
        for cuts in combinations(range(1, len(text)), count):
            edges = [0, *cuts, len(text)]
            pieces = [text[a:b] for a, b in pairwise(edges)]
            assert run(pieces, opened=opened) == (reasoning, content)
    assert run(list(text), opened=opened) == (reasoning, content)


def test_without_tags_everything_is_content() -> None:
    assert run(["<thi", "nk>x</think>y"], tags=None) == ("", "<think>x</think>y")


def test_text_is_not_held_longer_than_needed() -> None:
    parser = ReasoningParser(ThinkingTags(), opened=True)
    assert [piece.text for piece in parser.feed("one two")] == ["one two"]
    assert [piece.text for piece in parser.feed(" </t")] == [" "]
    assert [piece.text for piece in parser.feed("ime")] == ["</time"]

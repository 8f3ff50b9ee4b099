"""Stop strings: the result must not depend on how the text was cut."""

import random
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.stops import StopFilter


def run(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    """Everything let out, and the stop that was found."""
    machine = StopFilter(stops)
    text = "".join(machine.feed(piece) for piece in pieces)
    return (text if machine.hit is not None else text + machine.finish()), machine.hit


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition, by brute force: the first end wins, then the longer stop."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


CASES = [
    ("say O P Q now", ["O P Q"]),
    ("a\n\nUser: b", ["\n\nUser:"]),
    ("aabaabaac", ["aabaac"]),
    ("stop first", ["stop"]),
    ("xabcabcabdy", ["abcabd", "cabx"]),
    ("abcd", ["bcd", "c"]),
    ("abcd", ["ab", "abcd"]),
    ("ends with \n\nUse", ["\n\nUser:"]),
    ("really?", ["\n"]),
    ("日本語の文", ["語の"]),
    ("nothing", ["", "zzz"]),
]


@pytest.mark.parametrize(("text", "stops"), CASES)
def test_every_split_gives_the_same(text: str, stops: list[str]) -> None:
    expected = reference(text, stops)
    for count in range(min(3, len(text))):
        for cuts in combinations(range(1, len(text)), count):
            edges = [0, *cuts, len(text)]
            pieces = [text[a:b] for a, b in pairwise(edges)]
            assert run(pieces, stops) == expected
    assert run(list(text), stops) == expected


@given(
    st.text(alphabet="ab\n", max_size=24),
    st.lists(st.text(alphabet="ab\n", max_size=5), max_size=4),
    st.integers(0, 2**32),
)
def test_random_texts_match_the_definition(text: str, stops: list[str], seed: int) -> None:
    cuts = sorted(random.Random(seed).sample(range(len(text) + 1), k=min(4, len(text))))
    edges = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert run(pieces, stops) == reference(text, stops)


def test_nothing_of_a_stop_is_let_out_early() -> None:
    machine = StopFilter(["\n\nUser:"])
    assert [machine.feed(piece) for piece in ("answer", "\n", "\nUs", "e", "r:", " more")] == ["answer"] + [""] * 5
    assert machine.hit == "\n\nUser:"


def test_text_that_only_looked_like_a_stop_comes_at_once() -> None:
    machine = StopFilter(["</end>"])
    assert machine.feed("a </e") == "a "
    assert machine.feed("lse> b") == "</else> b"


def test_the_tail_is_flushed_once() -> None:
    machine = StopFilter(["STOP"])
    assert machine.feed("the ST") == "the "
    assert machine.finish() == "ST"
    assert machine.finish() == ""


def test_a_long_stop_costs_little_a_character() -> None:
    """Quadratic work would take minutes here."""
    machine = StopFilter(["a" * 50_000 + "b"] * 64)
    text = "a" * 200_000
    assert len(machine.feed(text) + machine.finish()) == len(text)

"""Every message survives its line, whatever its fields; every damaged line is refused with what was expected."""

import string
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine import protocol
from engine.errors import BadRequest
from engine.protocol import (
    MAX_INT,
    MAX_LINE_BYTES,
    MAX_SEED,
    BadCommand,
    Done,
    Err,
    Gen,
    Info,
    Ping,
    Pong,
    Progress,
    Quit,
    Ready,
    Resume,
    Sampling,
    Stats,
    StatsRequest,
    Stop,
    TokenLine,
    Unknown,
    format_command,
    format_event,
    parse_command,
    parse_event,
)

counts = st.integers(0, MAX_INT)
words = st.text(st.characters(exclude_characters="=", exclude_categories=("C", "Z")), min_size=1, max_size=64)
maybe_word = st.none() | words
tenths = st.integers(0, 10**9).map(lambda n: n / 10)
keys = st.text(string.ascii_lowercase + string.digits + "_", min_size=1, max_size=12).map(lambda s: "k" + s)
unit = st.floats(0, 1)
penalty = st.floats(-100, 100)
samplings = st.builds(
    Sampling,
    temperature=st.floats(0, 100),
    top_k=st.integers(0, 64),
    top_p=unit,
    min_p=unit,
    penalty_last_n=counts,
    penalty_repeat=st.floats(0.01, 100),
    penalty_freq=penalty,
    penalty_present=penalty,
    seed=st.none() | st.integers(0, MAX_SEED),
    spec_min_p=st.none() | unit,
)
gens = st.builds(
    Gen,
    max_new=counts,
    tokens=st.lists(counts, min_size=1, max_size=20).map(tuple),
    id=maybe_word,
    sampling=samplings,
    logprobs=st.none() | st.integers(0, 64),
    score=st.none() | st.lists(counts, min_size=1, max_size=4).map(tuple),
    cache=st.booleans(),
    ignore_eos=st.booleans(),
)
commands = (
    gens
    | st.builds(Stop, id=maybe_word, keep=st.none() | counts)
    | st.builds(Ping, maybe_word)
    | st.just(StatsRequest())
    | st.just(Quit())
)
values = st.integers(-(10**15), 10**15) | words.filter(lambda w: not w.lstrip("+-").isdecimal())
fields = st.dictionaries(keys, values, max_size=5)
logprobs = st.integers(-99999, 0).map(lambda n: n / 1000)
sentences = st.lists(words, min_size=1, max_size=6).map(" ".join)
tops = st.lists(st.tuples(counts, logprobs), max_size=4).map(tuple)
events = st.one_of(
    st.builds(Info, fields),
    st.builds(Stats, fields),
    st.builds(Ready, counts, st.lists(words, max_size=2).map(tuple)),
    st.builds(Resume, counts),
    st.builds(Progress, counts, counts, counts, tenths),
    st.builds(TokenLine, counts),
    st.builds(TokenLine, counts, logprobs, tops),
    st.builds(
        Done,
        generated=counts,
        prompt=counts,
        prompt_ms=tenths,
        decode_ms=tenths,
        finish=st.sampled_from(["stop", "length", "cancel"]),
        **{name: counts for name in ("accepted", "offered", "reused", "hits", "lookups", "file_mb", "prompt_read")},
        id=maybe_word,
        extra=st.dictionaries(keys, words, max_size=3),
    ),
    st.builds(Err, code=st.just("bad_token"), message=sentences, id=maybe_word, fatal=st.booleans()),
    st.builds(Pong, maybe_word),
)


@given(commands)
def test_commands_round_trip(command: protocol.Command) -> None:
    line = format_command(command)
    assert "\n" not in line
    assert parse_command(line) == command
    assert parse_command(line.encode() + b"\r\n") == command


@given(events)
def test_events_round_trip(event: protocol.Event) -> None:
    line = format_event(event)
    assert "\n" not in line
    assert parse_event(line) == event
    assert parse_event(line.encode() + b"\r\n") == event


@given(st.binary(max_size=60))
@example(b"GEN \xff\xfe")
@example(b"GEN 1 id=\xff 1")
@example("GEN 1 ٣".encode())
@example(b"GEN 1 1_0")
@example(b"STOP \xc3")
def test_any_bytes_are_a_command_or_a_bad_request(raw: bytes) -> None:
    for line in (raw, b"GEN 1 " + raw, b"GEN 1 seed=" + raw + b" 1"):
        try:
            command = parse_command(line)
        except BadRequest as error:
            assert "\n" not in str(error)
        else:
            assert parse_command(format_command(command)) == command


@given(st.text(max_size=60))
def test_any_text_is_an_event_or_a_bad_event(text: str) -> None:
    for line in (text, "DONE " + text, "T " + text, "INFO " + text, "ERR " + text):
        try:
            event = parse_event(line)
        except protocol.BadEvent:
            continue
        assert isinstance(event, protocol.Event)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", "expected GEN, STOP, PING, STATS or QUIT"),
        ("gen 1 1", "expected GEN, STOP"),
        ("GENI 1 file 1", "expected GEN, STOP"),
        ("GEN", "max_new"),
        ("GEN -1 1", "max_new from 0 to"),
        ("GEN 2147483648 1", "max_new from 0 to"),
        ("GEN 1", "token ids"),
        ("GEN 1 1,,2", "got ',2' at byte 2"),
        ("GEN 1 1,2,", "token ids"),
        ("GEN 1 -4", "got '-4'"),
        ("GEN 1 1.5", "got '1.5' at byte 0"),
        ("GEN 1 2147483648", "got 2147483648"),
        ("GEN 1 " + "9" * 5000, "token ids"),
        ("GEN 1 1 seed=3", "got 'seed=3'"),
        ("GEN 1 temperature=nan 1", "temperature as a number from 0 to 100"),
        ("GEN 1 temperature=-0.5 1", "temperature as"),
        ("GEN 1 temperature= 1", "temperature as"),
        ("GEN 1 top_k=65 1", "top_k as an integer from 0 (all) to 64"),
        ("GEN 1 top_p=1.01 1", "top_p as"),
        ("GEN 1 min_p=inf 1", "min_p as"),
        ("GEN 1 penalty_repeat=0 1", "penalty_repeat as a number from 0.01 to 100"),
        ("GEN 1 seed=18446744073709551616 1", "seed as"),
        ("GEN 1 seed=-1 1", "seed as"),
        ("GEN 1 seed=1 seed=2 1", "seed is given twice"),
        ("GEN 1 logprobs=65 1", "logprobs as"),
        ("GEN 1 ignore_eos=yes 1", "ignore_eos as 0 or 1"),
        ("GEN 1 cache=2 1", "cache as 0 or 1"),
        ("GEN 1 score=1:x 1", "score as token ids joined by ':'"),
        ("GEN 1 id= 1", "id as 1 to 64"),
        ("GEN 1 id=" + "x" * 65 + " 1", "id as 1 to 64"),
        ("STOP a b", "expected STOP [id] [keep=n]"),
        ("STOP keep=-1", "keep as"),
        ("PING a b", "expected PING with one word"),
        ("QUIT now", "expected QUIT alone"),
        ("STATS x", "expected STATS alone"),
    ],
)
def test_malformed_commands_say_what_was_expected(line: str, expected: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_command(line)
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("line", ["GEN x id=r7 1", "GEN 1 id=r7 seed=x 1", "GEN 1 id=r7 1,,2", "GEN 1 id=r7"])
def test_the_id_of_a_malformed_request_is_kept(line: str) -> None:
    with pytest.raises(BadCommand) as caught:
        parse_command(line)
    assert caught.value.request_id == "r7"


def test_defaults_are_the_documented_ones() -> None:
    gen = parse_command("GEN 5 7")
    assert gen == Gen(max_new=5, tokens=(7,))
    assert gen.sampling == Sampling(temperature=0, top_k=20, top_p=1, min_p=0, penalty_last_n=64, seed=None)


def test_unknown_pairs_are_ignored() -> None:
    assert parse_command("GEN 5 future=a=b mask=1 7") == Gen(max_new=5, tokens=(7,))
    assert parse_command("STOP x future=1 keep=2") == Stop(id="x", keep=2)
    event = parse_event("ERR bad_token id=a where=3 fatal=1 no such token")
    assert event == Err(code="bad_token", id="a", fatal=True, message="no such token")


def test_a_message_that_looks_like_a_pair_is_not_read_as_one() -> None:
    event = parse_event(format_event(Err(code="bad_request", message="id=b is not\nknown")))
    assert isinstance(event, Err)
    assert event.id is None
    assert event.message == "at id=b is not known"


@pytest.mark.parametrize("words", range(6, 16))
def test_a_shorter_done_is_accepted(words: int) -> None:
    whole = ["DONE", "3", "9", "8.5", "4.5", "stop", "1", "2", "3", "4", "5", "6", "7", "8.0", "9"]
    event = parse_event(" ".join([*whole[:words], "id=a", "seed=4", "later=x"]))
    assert isinstance(event, Done)
    assert (event.generated, event.finish, event.id, event.extra) == (3, "stop", "a", {"seed": "4", "later": "x"})
    expected = {"accepted": 1, "offered": 2, "reused": 3, "hits": 4, "file_mb": 8, "prompt_read": 9}
    place = {"accepted": 6, "offered": 7, "reused": 8, "hits": 9, "file_mb": 13, "prompt_read": 14}
    for name, value in expected.items():
        assert getattr(event, name) == (value if place[name] < words else 0)


@pytest.mark.parametrize(
    ("line", "stop_ids"), [("INFO eos=1,2", (1, 2)), ("INFO eos=7", (7,)), ("INFO eos=", ()), ("INFO a=b", ())]
)
def test_info_gives_the_stop_ids(line: str, stop_ids: tuple[int, ...]) -> None:
    event = parse_event(line)
    assert isinstance(event, Info)
    assert event.stop_ids == stop_ids


def test_numbers_of_info_are_numbers_and_the_rest_is_text() -> None:
    assert parse_event("INFO a=1 b=-2 c=1.5 d=x=y e=") == Info({"a": 1, "b": -2, "c": "1.5", "d": "x=y", "e": ""})
    assert format_event(Info({"name": "two words"})) == "INFO name=two_words"


def test_a_verb_of_a_later_version_is_unknown_not_an_error() -> None:
    assert parse_event("MQ 1 2") == Unknown("MQ 1 2")


def test_a_line_over_the_limit_is_refused_and_names_its_request() -> None:
    with pytest.raises(BadCommand, match="at most 16777216 bytes") as caught:
        parse_command(b"GEN 1 id=big " + b"1," * (MAX_LINE_BYTES // 2) + b"1")
    assert caught.value.request_id == "big"


@settings(max_examples=20)
@given(st.data())
def test_ids_may_be_separated_by_blanks_too(data: Any) -> None:
    tokens = data.draw(st.lists(counts, min_size=1, max_size=9))
    line = "GEN 1 " + str(tokens[0])
    for token in tokens[1:]:
        line += data.draw(st.sampled_from([",", " ", ", ", " ,", "\t", " , "])) + str(token)
    command = parse_command(line)
    assert isinstance(command, Gen)
    assert command.tokens == tuple(tokens)

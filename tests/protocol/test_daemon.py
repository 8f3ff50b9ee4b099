"""The daemon as a process: start, requests in order, errors, the end."""

import subprocess
import sys

import pytest

from engine.protocol import Done, Err, Info, Progress, Ready, TokenLine
from tests.protocol.driver import MOCK_ENGINE, ROOT, TIMEOUT_S, mock_engine
from tests.protocol.mock_session import BUG, NAN, NO_MEMORY, NOISY, SLOW, greedy_reply

PROMPT = [5, 6, 7]


def _piped(text: str | bytes, *flags: str) -> subprocess.CompletedProcess[bytes]:
    data = text.encode() if isinstance(text, str) else text
    return subprocess.run([*MOCK_ENGINE, *flags], input=data, capture_output=True, cwd=ROOT, timeout=TIMEOUT_S)


def test_start_tells_what_was_loaded_then_ready() -> None:
    with mock_engine("--max-context", "1000", "--prefill", "8", ready=False) as engine:
        info, ready = engine.until_type(Ready)
        assert ready == Ready(1000, ("stop",))
        assert isinstance(info, Info)
        assert list(info.fields) == [
            "protocol", "engine", "arch", "context", "vocab", "eos", "backend", "isa", "pool_workers", "kv", "prefill",
            "window_max", "weights_mib", "state_mib", "deterministic", "later",
        ]  # fmt: skip
        assert (info.fields["protocol"], info.fields["context"], info.stop_ids) == (1, 1000, (1, 2))


@pytest.mark.parametrize("text", ["GEN 6 5,6,7\nQUIT\n", "GEN 6 5,6,7\nQUIT", "GEN 6 5,6,7\n", "\r\n\n GEN  6 5,6,7"])
def test_lines_from_a_shell_are_answered_and_the_end_is_clean(text: str) -> None:
    done = _piped(text)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    assert [line for line in lines if line.startswith("T ")] == [f"T {token}" for token in greedy_reply(PROMPT, 6)]
    assert lines[-1].startswith("DONE 6 3 ")


def test_done_has_every_field() -> None:
    with mock_engine("--prefill", "4") as engine:
        engine.send("GEN 5 id=r1 ignore_eos=1 " + ",".join(map(str, range(100, 110))))
        events = engine.until_type(Done)
        progress = [event for event in events if isinstance(event, Progress)]
        assert [(event.done, event.total) for event in progress] == [(4, 10), (8, 10), (10, 10)]
        done = events[-1]
        assert isinstance(done, Done)
        assert (done.generated, done.prompt, done.finish, done.prompt_read, done.id) == (5, 10, "length", 10, "r1")
        assert (done.accepted, done.offered, done.reused) == (0, 0, 0)
        assert (done.hits, done.lookups) == (4, 8)  # of the four steps after the prompt
        assert done.prompt_ms > 0
        assert done.decode_ms > 0
        assert len(engine.lines[-1].split()) == 1 + 14 + 1


def test_max_new_0_reads_the_prompt() -> None:
    with mock_engine() as engine:
        engine.send("GEN 0 5,6,7", "GEN 3 5,6,7")
        events = engine.until_type(Done)
        assert [type(event) for event in events] == [Progress, Done]
        done = events[-1]
        assert isinstance(done, Done)
        assert (done.generated, done.prompt_read, done.finish) == (0, 3, "length")
        assert engine.answer()[0] == greedy_reply(PROMPT, 3)


def test_requests_sent_ahead_are_answered_in_order_once_each() -> None:
    prompts = [[n, n + 1, n + 2] for n in range(10, 20)]
    with mock_engine() as engine:
        engine.send(*(f"GEN 4 id=r{i} " + ",".join(map(str, prompt)) for i, prompt in enumerate(prompts)), "QUIT")
        for i, prompt in enumerate(prompts):
            tokens, end = engine.answer()
            assert tokens == greedy_reply(prompt, 4)
            assert isinstance(end, Done)
            assert end.id == f"r{i}"
        assert engine.finish() == ([], 0)


def test_malformed_lines_are_answered_in_turn_and_cost_nothing_else() -> None:
    with mock_engine() as engine:
        engine.send(
            f"GEN 3 id=a {SLOW},6,7", "HELLO", b"\xff\xfe\x00junk", "GEN 5 id=b 1,,2", "STOP a b", "", "   ",
            "GEN 1 id=c top_k=900 1", "GEN 3 id=d 5,6,7", "QUIT",
        )  # fmt: skip
        ends = [engine.answer()[1] for _ in range(7)]
        codes = [end.code if isinstance(end, Err) else "done" for end in ends]
        assert codes == ["done", *["bad_request"] * 5, "done"]
        assert [end.id for end in ends] == ["a", None, None, "b", None, "c", "d"]
        assert engine.finish() == ([], 0)


def test_bad_tokens_and_long_prompts_are_refused_before_anything_is_computed() -> None:
    with mock_engine("--max-context", "10") as engine:
        engine.send("GEN 4 id=a 5,512,7", "GEN 4 id=b " + "5," * 9 + "5", "GEN 4 score=1:2 5")
        engine.send("GEN 99 " + "5," * 8 + "5")
        expected = ["bad_token", "context_exceeded", "bad_request"]
        for code, part in zip(expected, ["token 512 at place 1", "10 tokens, the context 10", "score"], strict=True):
            (event,) = engine.until_type(Err)
            assert isinstance(event, Err)
            assert (event.code, event.fatal) == (code, False)
            assert part in event.message
        tokens, end = engine.answer()
        assert isinstance(end, Done)
        assert (len(tokens), end.finish) == (1, "length")  # the last cell


@pytest.mark.parametrize(("token", "code"), [(NAN, "non_finite_logits"), (NO_MEMORY, "out_of_memory")])
def test_a_failed_request_ends_alone(token: int, code: str) -> None:
    with mock_engine() as engine:
        engine.send(f"GEN 4 id=bad 5,{token},7", "GEN 6 id=good 5,6,7")
        tokens, end = engine.answer()
        assert tokens == []
        assert isinstance(end, Err)
        assert (end.code, end.id, end.fatal) == (code, "bad", False)
        assert engine.answer()[0] == greedy_reply(PROMPT, 6)


def test_a_bug_ends_the_process_with_a_fatal_line() -> None:
    with mock_engine() as engine:
        engine.send(f"GEN 4 id=bad 5,{BUG},7", "GEN 4 id=waiting 5,6,7")
        events, code = engine.finish()
        assert events == [Err(code="internal", id="bad", fatal=True, message="RuntimeError: this is a bug")]
        assert code == 1
        assert "Traceback" in engine.stderr


@pytest.mark.parametrize(
    ("how", "code", "part"),
    [("bad", "bad_model", "offset 24"), ("bug", "internal", "blk.0.nothing"), ("memory", "out_of_memory", "memory")],
)
def test_a_failed_load_says_so_in_place_of_ready(how: str, code: str, part: str) -> None:
    with mock_engine(ready=False, MOCK_LOAD=how) as engine:
        engine.send("GEN 4 5,6,7")
        events, exit_code = engine.finish()
        assert exit_code == 1
        (event,) = events
        assert isinstance(event, Err)
        assert (event.code, event.fatal) == (code, True)
        assert part in event.message
        assert part in engine.stderr
        if how == "bad":
            assert len(engine.stderr.splitlines()) == 1


def test_only_protocol_lines_reach_stdout() -> None:
    with mock_engine(ready=False, MOCK_LOAD="noisy") as engine:
        events = engine.until_type(Ready)
        assert [type(event) for event in events] == [Info, Ready]
        engine.send(f"GEN 2 {NOISY},6,7", "QUIT")
        events, code = engine.finish()
        assert [type(event) for event in events] == [Progress, TokenLine, TokenLine, Done]
        assert code == 0
        for text in ("from Python", "from a file", "from C", "from a warning", "from a child", "original", "closed"):
            assert text in engine.stderr


def test_end_of_turn_stops_and_ignore_eos_does_not() -> None:
    prompt = next([n, 3, 4] for n in range(5, 400) if len(greedy_reply([n, 3, 4], 100)) < 100)
    reply = greedy_reply(prompt, 100)
    longer = greedy_reply(prompt, 100, stop_ids=())
    ids = ",".join(map(str, prompt))
    with mock_engine() as engine:
        engine.send(f"GEN 100 {ids}", f"GEN 100 ignore_eos=1 {ids}")
        tokens, end = engine.answer()
        assert isinstance(end, Done)
        assert (tokens, end.finish, end.generated) == (reply, "stop", len(reply))
        tokens, end = engine.answer()
        assert isinstance(end, Done)
        assert (tokens, end.finish) == (longer, "length")
    with mock_engine("--eos-ids", str(longer[1])) as engine:
        engine.send(f"GEN 100 {ids}")
        assert engine.answer()[0] == longer[:2]


def test_a_two_megabyte_line_is_answered() -> None:
    ids = ",".join(str(100 + i % 400) for i in range(500_000))
    with mock_engine("--max-context", "600000", "--prefill", "100000") as engine:
        engine.send(f"GEN 1 id=long {ids}")
        events = engine.until_type(Done)
        assert isinstance(events[-1], Done)
        assert (events[-1].prompt, events[-1].generated) == (500_000, 1)
    with mock_engine() as engine:
        engine.send(f"GEN 1 id=long {ids}", "GEN 3 5,6,7")
        _, end = engine.answer()
        assert isinstance(end, Err)
        assert (end.code, end.id) == ("context_exceeded", "long")
        assert engine.answer()[0] == greedy_reply(PROMPT, 3)


def test_an_over_long_line_is_refused_and_the_stream_goes_on() -> None:
    with mock_engine() as engine:
        engine.send(b"GEN 1 id=huge " + b"7," * (9 << 20) + b"7", "GEN 3 5,6,7")
        _, end = engine.answer()
        assert isinstance(end, Err)
        assert (end.code, end.id) == ("bad_request", "huge")
        assert "16777216" in end.message
        assert engine.answer()[0] == greedy_reply(PROMPT, 3)


def test_the_same_seed_gives_the_same_ids_however_the_prompt_is_cut() -> None:
    line = "GEN 20 temperature=0.9 top_p=0.95 seed=11 ignore_eos=1 " + ",".join(map(str, range(30, 60)))
    replies = []
    for chunk in ("1", "7", "512"):
        with mock_engine("--prefill", chunk) as engine:
            engine.send(line, "GEN 3 5,6,7", line, line.replace("seed=11", "seed=12"))
            answers = [engine.answer()[0] for _ in range(4)]
            assert answers[0] == answers[2] != answers[3]
            replies.append(answers[0])
    assert replies[0] == replies[1] == replies[2]


def test_a_seed_from_the_clock_is_told_and_can_be_given_back() -> None:
    with mock_engine() as engine:
        engine.send("GEN 20 temperature=1 top_k=0 5,6,7")
        tokens, end = engine.answer()
        assert isinstance(end, Done)
        engine.send(f"GEN 20 temperature=1 top_k=0 seed={end.extra['seed']} 5,6,7", "GEN 1 5,6,7")
        assert engine.answer()[0] == tokens
        _, end = engine.answer()
        assert isinstance(end, Done)
        assert end.extra == {}  # a greedy request has no seed


def test_log_probabilities_come_with_the_tokens() -> None:
    with mock_engine() as engine:
        engine.send("GEN 3 logprobs=4 5,6,7", "GEN 3 logprobs=0 temperature=1 seed=1 5,6,7")
        for event in engine.until_type(Done):
            if isinstance(event, TokenLine):
                assert event.logprob is not None
                assert [event.token, event.logprob] == [event.top[0][0], event.top[0][1]]
                values = [value for _, value in event.top]
                assert len(values) == 4
                assert values == sorted(values, reverse=True)
        lines = [event for event in engine.until_type(Done) if isinstance(event, TokenLine)]
        assert all(event.logprob is not None and event.logprob < 0 and event.top == () for event in lines)


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--max-contxt", "5"], "did you mean --max-context"),
        (["--modle=x"], "did you mean --model"),
        (["model.gguf"], "--model model.gguf"),
        (["--prefill", "0"], "expected an integer from 1"),
        (["--eos-ids", "1,x"], "expected an integer from 0"),
        (["--max-context"], "expected one argument"),
        (["--max-context", "1"], "expected an integer from 2"),
        (["--pool-workers", "300"], "expected an integer from 0 to 256"),
        (["--backend", "tpu"], "choose from"),
    ],
)
def test_a_wrong_command_line_exits_2(flags: list[str], part: str) -> None:
    done = subprocess.run([sys.executable, "-m", "engine", *flags], capture_output=True, cwd=ROOT, timeout=TIMEOUT_S)
    assert done.returncode == 2
    assert done.stdout == b""
    assert part in done.stderr.decode()


def test_without_a_stdout_it_says_so_and_leaves() -> None:
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *MOCK_ENGINE]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=ROOT, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert done.stderr.decode() == "terrace-engine: cannot use stdout: [Errno 9] Bad file descriptor\n"


def test_a_missing_model_is_one_clear_line_and_exit_code_1() -> None:
    command = [sys.executable, "-m", "engine", "--model", "/nowhere/x.gguf"]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert done.stdout.startswith(b"ERR bad_model fatal=1 ")
    assert len(done.stdout.splitlines()) == len(done.stderr.splitlines()) == 1
    assert b"/nowhere/x.gguf" in done.stderr


def test_the_log_file_takes_what_would_go_to_stderr(tmp_path_factory: pytest.TempPathFactory) -> None:
    log_file = tmp_path_factory.mktemp("log") / "engine.log"
    done = _piped("GEN 3 5,6,7\nnonsense\n", "--log-file", str(log_file))
    assert done.returncode == 0
    assert done.stderr == b""
    assert "bad_request" in log_file.read_text()
    assert _piped("", "--log-file", str(log_file.parent / "no" / "x")).returncode == 1

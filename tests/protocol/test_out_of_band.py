"""STOP, PING, STATS, QUIT while something runs, and a client that goes away."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from engine.protocol import Done, Pong, Progress, Ready, Stats, TokenLine
from tests.protocol.driver import MOCK_ENGINE, ROOT, TIMEOUT_S, mock_engine
from tests.protocol.mock_session import SLOW, STUCK, greedy_reply

SLOW_PROMPT = [SLOW, 6, 7]
SLOW_IDS = ",".join(map(str, SLOW_PROMPT))
LEAVE_S = 5.0  # the contract's limit


def test_stop_hits_the_running_request() -> None:
    with mock_engine() as engine:
        engine.send(f"GEN 1000 id=a ignore_eos=1 {SLOW_IDS}")
        engine.until_type(TokenLine)
        engine.send("STOP")
        tokens, end = engine.answer()
        assert isinstance(end, Done)
        assert (end.finish, end.id, end.generated) == ("cancel", "a", len(tokens) + 1)
        assert end.generated < 1000
        engine.send("GEN 4 5,6,7")
        assert engine.answer()[0] == greedy_reply([5, 6, 7], 4)


def test_stop_with_an_id_hits_that_request_alone() -> None:
    with mock_engine() as engine:
        engine.send(f"GEN 12 id=a ignore_eos=1 {SLOW_IDS}", "GEN 9 id=b 5,6,7", "GEN 5 id=c 8,9,10")
        engine.until_type(TokenLine)
        engine.send("STOP b", "STOP nobody", "STOP b keep=2", "STOP d")
        tokens, end = engine.answer()
        assert isinstance(end, Done)
        assert (end.id, end.finish) == ("a", "length")
        assert tokens == greedy_reply(SLOW_PROMPT, 12, stop_ids=())[1:]
        tokens, end = engine.answer()
        assert isinstance(end, Done)
        assert (tokens, end.id, end.finish, end.generated, end.prompt, end.prompt_read) == ([], "b", "cancel", 0, 3, 0)
        tokens, end = engine.answer()
        assert isinstance(end, Done)
        assert (tokens, end.id) == (greedy_reply([8, 9, 10], 5), "c")
        engine.send("QUIT")
        assert engine.finish() == ([], 0)  # no second terminal line for anyone


def test_a_late_stop_does_not_hit_the_next_request() -> None:
    with mock_engine() as engine:
        engine.send("GEN 3 id=a 5,6,7")
        engine.answer()
        engine.send("STOP", "STOP a", "GEN 5 id=b 8,9,10", "STOP a", "STOP a keep=1")
        tokens, end = engine.answer()
        assert isinstance(end, Done)
        assert (tokens, end.id) == (greedy_reply([8, 9, 10], 5), "b")


def test_a_stop_right_behind_its_request_hits_it() -> None:
    with mock_engine() as engine:
        for _ in range(5):
            engine.send("GEN 1000 ignore_eos=1 5,6,7\nSTOP")
            _, end = engine.answer()
            assert isinstance(end, Done)
            assert end.finish == "cancel"


def test_stop_between_prompt_chunks() -> None:
    prompt = [SLOW, *range(100, 200)]
    with mock_engine("--prefill", "4") as engine:
        engine.send("GEN 5 id=a " + ",".join(map(str, prompt)))
        engine.until_type(Progress)
        engine.send("STOP a keep=0")
        tokens, end = engine.answer()
        assert isinstance(end, Done)
        assert (tokens, end.finish, end.generated, end.prompt) == ([], "cancel", 0, 101)
        assert 0 < end.prompt_read < 101
        assert end.prompt_read % 4 == 0
        engine.send("GEN 4 5,6,7")
        assert engine.answer()[0] == greedy_reply([5, 6, 7], 4)


def test_stop_then_quit_ends_at_once() -> None:
    with mock_engine() as engine:
        engine.send(f"GEN 3000 ignore_eos=1 {SLOW_IDS}")
        engine.until_type(TokenLine)
        engine.send("STOP", "QUIT")
        events, code = engine.finish()
        assert code == 0
        assert isinstance(events[-1], Done)
        assert events[-1].finish == "cancel"


def test_quit_waits_behind_accepted_requests_and_ends_the_input() -> None:
    with mock_engine() as engine:
        engine.send(f"GEN 5 id=a {SLOW_IDS}", "GEN 5 id=b 5,6,7", "QUIT", "GEN 5 id=c 5,6,7", "nonsense", "PING last")
        events, code = engine.finish()
        assert code == 0
        assert [event.id for event in events if isinstance(event, Done)] == ["a", "b"]
        assert Pong("last") in events
        assert isinstance(events[-1], Done)


def test_the_end_of_input_waits_behind_accepted_requests() -> None:
    with mock_engine() as engine:
        engine.send(f"GEN 5 id=a {SLOW_IDS}", "GEN 5 id=b 5,6,7")
        engine.close_stdin()
        events, code = engine.finish()
        assert code == 0
        assert [event.id for event in events if isinstance(event, Done)] == ["a", "b"]


def test_ping_and_stats_are_answered_in_the_middle_of_a_prompt() -> None:
    with mock_engine("--prefill", "4") as engine:
        engine.send("STATS")
        (stats,) = engine.until_type(Stats)
        assert isinstance(stats, Stats)
        assert (stats.fields["state"], stats.fields["queue"], stats.fields["requests"]) == ("idle", 0, 0)
        prompt = ",".join(map(str, [SLOW, *range(100, 150)]))
        engine.send(f"GEN 5 ignore_eos=1 {prompt}", "GEN 2 ignore_eos=1 5,6,7")
        engine.until_type(Progress)
        engine.send("PING 17", "PING", "STATS")
        events = engine.until_type(Stats)
        assert [event for event in events if isinstance(event, Pong)] == [Pong("17"), Pong()]
        stats = events[-1]
        assert isinstance(stats, Stats)
        assert (stats.fields["state"], stats.fields["queue"], stats.fields["requests"]) == ("prompt", 1, 1)
        later = engine.until_type(Done)
        assert any(isinstance(event, Progress) for event in later)
        engine.until_type(Done)
        engine.send("STATS")
        (stats,) = engine.until_type(Stats)
        assert isinstance(stats, Stats)
        assert {key: stats.fields[key] for key in ("requests", "length", "prompt_tokens", "generated_tokens")} == {
            "requests": 2, "length": 2, "prompt_tokens": 54, "generated_tokens": 7,
        }  # fmt: skip
        assert int(stats.fields["rss_mib"]) > 0
        assert int(stats.fields["lookups"]) > 0


def test_commands_may_come_before_ready() -> None:
    with mock_engine(ready=False, MOCK_LOAD="slow") as engine:
        engine.send("PING early", "STATS", "GEN 3 5,6,7")
        pong, stats, *_ = engine.until_type(Ready)
        assert pong == Pong("early")
        assert isinstance(stats, Stats)
        assert stats.fields["state"] == "loading"
        assert engine.answer()[0] == greedy_reply([5, 6, 7], 3)


def test_many_cancels_at_any_moment_leave_no_trace() -> None:
    reference = greedy_reply([5, 6, 7], 30)
    with mock_engine("--prefill", "4") as engine:
        prompt = ",".join(map(str, range(100, 140)))
        for i in range(60):
            engine.send(f"GEN 300 id=r{i} ignore_eos=1 {prompt}")
            for _ in range(i % 13):
                engine.next_event()
            engine.send(f"STOP r{i} keep=0", f"STOP r{i}")
            _, end = engine.answer()
            assert isinstance(end, Done)
            assert end.id == f"r{i}"
        engine.send("GEN 30 5,6,7", "QUIT")
        assert engine.answer()[0] == reference
        assert engine.finish() == ([], 0)


@pytest.mark.parametrize(
    ("request_line", "last_line"),
    [(f"GEN 5 {STUCK},6,7", "READY"), (f"GEN 4000 ignore_eos=1 {SLOW_IDS}", "T ")],
    ids=["prompt", "decode"],
)
def test_closed_stdout_ends_the_engine(request_line: str, last_line: str) -> None:
    pipe = subprocess.PIPE
    process = subprocess.Popen(MOCK_ENGINE, stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(request_line.encode() + b"\n")
        process.stdin.flush()
        while not process.stdout.readline().startswith(last_line.encode()):
            pass
        time.sleep(0.2)  # into the step
        process.stdout.close()
        assert process.wait(LEAVE_S) == 1
    finally:
        process.kill()
        process.communicate()


_PARENT = """
import subprocess, sys, time
child = subprocess.Popen(sys.argv[1:])
print("PID", child.pid, file=sys.stderr, flush=True)
time.sleep(600)
"""


def test_a_killed_parent_takes_the_engine_along_in_the_middle_of_a_prompt() -> None:
    # the test keeps both pipes open, so that nothing but the parent's death can be noticed
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, *MOCK_ENGINE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    engine = None
    try:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stderr is not None
        engine = psutil.Process(int(parent.stderr.readline().split()[1]))
        while not parent.stdout.readline().startswith(b"READY"):
            pass
        parent.stdin.write(f"GEN 5 {STUCK},6,7\n".encode())
        parent.stdin.flush()
        time.sleep(0.2)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(TIMEOUT_S)
        engine.wait(LEAVE_S)  # raises where it is still there
    finally:
        parent.kill()
        if engine is not None and engine.is_running():
            engine.kill()
        parent.communicate()

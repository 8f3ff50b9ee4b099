"""Start, crash, restart, silence and stop of the engine, through the production entry point."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.gateway.harness import GatewayProcess, process_gone, running_gateway, wait_until

Start = Callable[..., GatewayProcess]


def health(gateway: GatewayProcess) -> tuple[int, dict]:
    response = gateway.request("GET", "/health")
    return response.status_code, response.json()


def loading(*actions: list) -> str:
    return json.dumps({"start": list(actions)})


# ---- start


def test_nothing_is_served_while_loading(start_gateway: Start) -> None:
    gateway = start_gateway(script=loading(["deaf", 1.5]))
    status, body = health(gateway)
    assert status == 503
    assert body["error"] == {
        "code": 503,
        "message": "Loading model",
        "type": "unavailable_error",
        "state": "loading",
    }
    assert gateway.request("GET", "/v1/models").status_code == 503
    response = gateway.chat("q", stream=True)
    assert response.status_code == 503
    assert response.headers["Retry-After"]
    gateway.wait_ready()
    assert gateway.chat("q").status_code == 200


@pytest.mark.parametrize("code", ["bad_model", "out_of_memory"])
def test_a_model_that_cannot_be_loaded_is_said_plainly_and_tried_once(start_gateway: Start, code: str) -> None:
    gateway = start_gateway(script=loading(["line", f"ERR {code} fatal=1 needs 9 GiB, has 4"], ["crash", 1]))
    wait_until(lambda: health(gateway)[1]["error"].get("state") == "failed")
    assert "needs 9 GiB, has 4" in health(gateway)[1]["error"]["message"]
    response = gateway.chat("q")
    assert response.status_code == 503
    assert "needs 9 GiB, has 4" in response.json()["error"]["message"]
    assert sum("started, process" in line for line in gateway.log) == 1
    assert gateway.stop() == 0


def test_memory_that_is_short_after_a_crash_is_waited_for(start_gateway: Start) -> None:
    gateway = start_gateway()
    gateway.wait_ready()
    gateway.play(["crash", 9], start=[["line", "ERR out_of_memory fatal=1 needs 9 GiB, has 4"], ["crash", 1]])
    assert gateway.chat("q").status_code >= 500
    wait_until(lambda: "needs 9 GiB, has 4" in health(gateway)[1]["error"]["message"])
    assert health(gateway)[1]["error"]["state"] == "restarting"
    gateway.play(["text", "ok", 0], ["done", "stop"])
    assert gateway.chat("q").status_code == 200


def test_wrong_engine_flags_are_not_tried_again(start_gateway: Start) -> None:
    gateway = start_gateway(script=loading(["stderr", 101], ["crash", 2]))
    wait_until(lambda: health(gateway)[1]["error"].get("state") == "failed")
    assert "exit code 2" in health(gateway)[1]["error"]["message"]


def test_an_engine_that_never_gets_ready_is_killed(start_gateway: Start) -> None:
    gateway = start_gateway("--ready-timeout", "0.7", script=loading(["hang"]))
    first = gateway.engine_pid()
    wait_until(lambda: "not ready within" in health(gateway)[1]["error"]["message"])
    wait_until(lambda: process_gone(first))
    gateway.play(["text", "ok", 0], ["done", "stop"])
    assert gateway.chat("q").status_code == 200  # the request cuts the back-off short


def test_a_megabyte_of_log_does_not_block_the_start(start_gateway: Start) -> None:
    gateway = start_gateway(script=loading(["stderr", 1_000_000]))
    gateway.wait_ready()
    assert gateway.chat("q").status_code == 200


# ---- crashes


def test_a_crash_in_mid_stream_then_a_request_that_works(start_gateway: Start) -> None:
    gateway = start_gateway()
    gateway.wait_ready()
    gateway.play(["text", "half", 0], ["raw", "T 1"], ["crash", 7])
    events = gateway.events("q")
    assert "exit code 7" in events[-1]["error"]["message"]
    assert sum("choices" in event for event in events) == 4
    gateway.play(["text", "whole", 0], ["done", "stop"])
    assert gateway.chat("q").json()["choices"][0]["message"]["content"] == "whole"


def test_queued_requests_survive_the_death_of_the_active_one(start_gateway: Start) -> None:
    gateway = start_gateway()
    gateway.wait_ready()
    gateway.play(["text", "a", 0], ["sleep", 30], ["done", "stop"])
    with ThreadPoolExecutor(3) as pool:
        active = pool.submit(gateway.events, "q")
        wait_until(lambda: len(gateway.received()) == 1)
        queued = [pool.submit(gateway.chat, "q") for _ in range(2)]
        wait_until(lambda: health(gateway)[1]["queued"] == 2)
        gateway.play(["text", "served", 0], ["done", "stop"])
        os.kill(gateway.engine_pid(), signal.SIGKILL)
        assert "error" in active.result()[-1]
        for future in queued:
            assert future.result().json()["choices"][0]["message"]["content"] == "served"


def test_an_idle_engine_that_is_killed_is_restarted(start_gateway: Start) -> None:
    gateway = start_gateway()
    gateway.wait_ready()
    first = gateway.engine_pid()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: gateway.engine_pid() != first)
    gateway.wait_ready()
    assert gateway.chat("q").status_code == 200


def test_an_idle_engine_that_hangs_is_restarted(start_gateway: Start) -> None:
    gateway = start_gateway("--ping-timeout", "0.6")
    gateway.wait_ready()
    first = gateway.engine_pid()
    os.kill(first, signal.SIGSTOP)
    wait_until(lambda: gateway.engine_pid() != first)
    assert process_gone(first)
    gateway.wait_ready()
    assert gateway.chat("q").status_code == 200


def test_a_working_engine_that_hangs_is_restarted(start_gateway: Start) -> None:
    gateway = start_gateway("--ping-timeout", "0.6")
    gateway.wait_ready()
    first = gateway.engine_pid()
    gateway.play(["text", "a", 0], ["sleep", 30], ["done", "stop"])
    with ThreadPoolExecutor(1) as pool:
        active = pool.submit(gateway.events, "q")
        wait_until(gateway.received)
        os.kill(first, signal.SIGSTOP)
        assert "did not answer" in active.result()[-1]["error"]["message"]
    assert process_gone(first)
    gateway.play(["text", "b", 0], ["done", "stop"])
    assert gateway.chat("q").json()["choices"][0]["message"]["content"] == "b"


def test_a_gateway_that_stood_still_does_not_blame_the_engine(start_gateway: Start) -> None:
    """A machine that slept, or a container that was paused: on waking up the answer is there, unread."""
    gateway = start_gateway("--ping-timeout", "0.6")
    gateway.wait_ready()
    engine = gateway.engine_pid()
    for _ in range(4):
        os.kill(gateway.process.pid, signal.SIGSTOP)
        os.kill(engine, signal.SIGSTOP)
        time.sleep(0.9)
        os.kill(gateway.process.pid, signal.SIGCONT)
        time.sleep(0.05)  # the gateway looks first
        os.kill(engine, signal.SIGCONT)
        time.sleep(0.1)
    assert health(gateway)[0] == 200
    assert gateway.engine_pid() == engine


def test_health_says_why_between_death_and_restart(start_gateway: Start) -> None:
    gateway = start_gateway()
    gateway.wait_ready()
    seen = []
    os.kill(gateway.engine_pid(), signal.SIGKILL)
    wait_until(lambda: not seen.append(health(gateway)) and seen[-1][0] == 200 and len(seen) > 1)
    for status, body in seen:
        assert status == 200 or (body["error"]["state"], body["error"]["message"][:10]) == ("restarting", "Restarting")


# ---- silence and damaged lines


def test_a_silent_engine_is_given_up(start_gateway: Start) -> None:
    gateway = start_gateway("--silence-timeout", "0.6")
    gateway.wait_ready()
    gateway.play(["text", "a", 0], ["hang"])
    assert "said nothing" in gateway.events("q")[-1]["error"]["message"]
    gateway.play(["text", "b", 0], ["done", "stop"])
    assert gateway.chat("q").json()["choices"][0]["message"]["content"] == "b"


def test_a_slow_engine_that_shows_progress_is_not(start_gateway: Start) -> None:
    gateway = start_gateway("--silence-timeout", "0.8")
    gateway.wait_ready()
    gateway.play(*[["progress", n, 9] if n % 2 else ["deaf", 0.4] for n in range(8)], ["text", "b", 0], ["done", "stop"])
    assert gateway.chat("q").json()["choices"][0]["message"]["content"] == "b"


@pytest.mark.parametrize("fault", [["oversized", 17_000_000], ["line", "T not-a-number"]])
def test_a_damaged_line_costs_one_request(start_gateway: Start, fault: list) -> None:
    gateway = start_gateway()
    gateway.wait_ready()
    pid = gateway.engine_pid()
    gateway.play(["text", "a", 0], fault, ["sleep", 30], ["done", "stop"])
    assert "the engine wrote" in gateway.events("q")[-1]["error"]["message"]
    gateway.play(["text", "b", 0], ["done", "stop"])
    assert gateway.chat("q").json()["choices"][0]["message"]["content"] == "b"
    assert gateway.engine_pid() == pid


def test_lines_of_other_versions_are_ignored(start_gateway: Start) -> None:
    gateway = start_gateway()
    gateway.wait_ready()
    gateway.play(["line", "HELLO world"], ["line", ""], ["text", "b", 0], ["done", "stop"])
    assert gateway.chat("q").json()["choices"][0]["message"]["content"] == "b"


def test_a_two_megabyte_prompt_line_goes_through(start_gateway: Start) -> None:
    """The pipe holds 64 KiB, so the write has to wait for the engine."""
    gateway = start_gateway(script=json.dumps({"context": 3_000_000}))
    gateway.wait_ready()
    text = "q" * 600_000
    reply = gateway.chat(text).json()
    assert reply["usage"]["prompt_tokens"] > 600_000
    assert len(gateway.received()[0]) > 2_000_000


# ---- the end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_exits_with_0(start_gateway: Start, number: int) -> None:
    gateway = start_gateway()
    gateway.wait_ready()
    engine = gateway.engine_pid()
    gateway.play(["text", "a", 0], ["sleep", 0.5], ["text", "b", 0], ["done", "stop"])
    with ThreadPoolExecutor(1) as pool:
        active = pool.submit(gateway.events, "q")
        wait_until(lambda: len(gateway.received()) == 1)
        assert gateway.stop(number, timeout_s=5) == 0
        assert [c["delta"].get("content") for e in active.result() for c in e["choices"]] == ["a", "b", None]
    assert process_gone(engine)


@pytest.mark.parametrize("obstacle", [["sleep", 60], ["hang"]])
def test_a_signal_ends_what_does_not_end_by_itself(start_gateway: Start, obstacle: list) -> None:
    gateway = start_gateway()
    gateway.wait_ready()
    engine = gateway.engine_pid()
    gateway.play(["text", "a", 0], obstacle, ["done", "stop"])
    connection = gateway.open_chat(stream=True)
    wait_until(lambda: len(gateway.received()) == 1)
    assert gateway.stop(timeout_s=5) == 0
    assert process_gone(engine)
    connection.close()


def test_a_signal_while_loading(start_gateway: Start) -> None:
    gateway = start_gateway(script=loading(["hang"]))
    engine = gateway.engine_pid()
    assert gateway.stop(timeout_s=5) == 0
    assert process_gone(engine)


def test_the_engine_is_in_a_process_group_of_its_own(start_gateway: Start) -> None:
    gateway = start_gateway()
    gateway.wait_ready()
    assert os.getpgid(gateway.engine_pid()) == gateway.engine_pid()


def test_a_key_closes_the_api(start_gateway: Start) -> None:
    gateway = start_gateway("--api-key", "k")
    gateway.wait_ready()
    assert gateway.chat("q").status_code == 401
    assert gateway.request("GET", "/").status_code == 200
    models = gateway.request("GET", "/v1/models", headers={"Authorization": "Bearer k", "Host": "box.example"})
    assert models.status_code == 200


def test_an_allowed_page_may_read_the_answers(start_gateway: Start) -> None:
    gateway = start_gateway("--allow-origin", "https://app.example")
    gateway.wait_ready()
    headers = {"Origin": "https://app.example"}
    body = {"messages": [{"role": "user", "content": "q"}]}
    replies = [
        gateway.request("OPTIONS", "/v1/chat/completions", headers=headers),
        gateway.request("POST", "/v1/chat/completions", json_body=body, headers=headers),
        gateway.request("POST", "/v1/chat/completions", json_body={**body, "stream": True}, headers=headers),
        gateway.request("POST", "/v1/chat/completions", json_body={}, headers=headers),
    ]
    assert [reply.status_code for reply in replies] == [204, 200, 200, 400]
    assert {reply.headers["Access-Control-Allow-Origin"] for reply in replies} == {"https://app.example"}


def test_a_burst_is_answered_in_order(start_gateway: Start) -> None:
    gateway = start_gateway()
    gateway.wait_ready()
    gateway.play(["deaf", 0.05], ["text", "x", 0], ["done", "stop"])
    done: list[int] = []
    lock = threading.Lock()

    def ask(number: int) -> None:
        assert gateway.chat("q", seed=number + 1).status_code == 200
        with lock:
            done.append(number)

    with ThreadPoolExecutor(6) as pool:
        futures = []
        for number in range(6):
            futures.append(pool.submit(ask, number))
            wait_until(lambda n=number: len(gateway.received()) + health(gateway)[1]["queued"] > n)
        for future in futures:
            future.result()
    seeds = [line.split("seed=")[1].split()[0] for line in gateway.received()]
    assert seeds == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a process to its parent")
@pytest.mark.parametrize("stopped", [False, True])
def test_no_engine_outlives_a_killed_gateway(start_gateway: Start, stopped: bool) -> None:
    """Even one that cannot notice."""
    gateway = start_gateway()
    gateway.wait_ready()
    engine = gateway.engine_pid()
    if stopped:
        os.kill(engine, signal.SIGSTOP)
    gateway.process.kill()
    gateway.process.wait()
    wait_until(lambda: process_gone(engine))


def test_a_program_that_is_not_there_is_said(tmp_path: Path, model_file: Path) -> None:
    with running_gateway(tmp_path, "--engine-command", "no-such-engine --flag", model=model_file, fake=False) as gateway:
        wait_until(lambda: health(gateway)[1]["error"].get("state") == "failed")
        assert "no-such-engine" in health(gateway)[1]["error"]["message"]

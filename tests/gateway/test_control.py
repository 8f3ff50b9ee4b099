"""Status, feed, orders and metrics over real sockets; and that none of them repeats a word of a prompt."""

import http.client
import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.config import GatewayConfig
from gateway.errors import Forbidden
from gateway.security import Gatekeeper
from tests.gateway.harness import GatewayProcess, process_gone, wait_until

Start = Callable[..., GatewayProcess]

DONE = "DONE 3 $N 10.0 20.0 stop 1 2 4 30 40 5 6 7 8 id=$ID"
REPLY = [["line", "RESUME 4"], ["progress", 6, 8], ["text", "yes", 0], ["line", DONE]]


def status(gateway: GatewayProcess) -> dict[str, Any]:
    return gateway.request("GET", "/v1/status").json()


@contextmanager
def feed(gateway: GatewayProcess, **headers: str) -> Iterator[Iterator[dict[str, Any]]]:
    """The events of the live feed."""
    with closing(http.client.HTTPConnection(*gateway.address, timeout=20)) as connection:
        connection.request("GET", "/v1/status/feed", headers=headers)
        response = connection.getresponse()
        assert response.status == 200
        lines = (line.decode() for line in iter(response.readline, b""))
        data = (line.removeprefix("data: ") for line in lines if line.startswith("data: "))
        yield (json.loads(item) for item in data if item.strip() != "[DONE]")


def metrics(gateway: GatewayProcess) -> dict[str, float]:
    reply = gateway.request("GET", "/metrics")
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    samples = (sample for family in text_string_to_metric_families(reply.text) for sample in family.samples)
    return {sample.name + sample.labels.get("finished_reason", ""): sample.value for sample in samples}


# ---- status


def test_what_is_not_known_is_null(start_gateway: Start) -> None:
    gateway = start_gateway(script=json.dumps({"start": [["deaf", 1.0]]}))
    now = status(gateway)
    assert (now["engine"]["state"], now["engine"]["info"], now["engine"]["last_error"]) == ("loading", None, None)
    assert (now["activity"], now["model"]["context"], now["totals"]["hit_rate"]) == (None, None, None)
    gateway.wait_ready()
    assert status(gateway)["model"]["context"] == 4096


def test_a_request_leaves_its_figures_and_no_text(gateway: GatewayProcess) -> None:
    before = status(gateway)["totals"]
    gateway.play(*REPLY)
    assert gateway.chat("SECRETWORD").status_code == 200
    now = status(gateway)
    record = now["requests"][-1]
    assert (record["route"], record["ending"], record["error"]) == ("/v1/chat/completions", "stop", None)
    assert (record["generated"], record["reused"], record["accepted"], record["offered"]) == (3, 4, 1, 2)
    assert [record[name] for name in ("hits", "lookups", "ram_blobs", "file_blobs", "file_mb")] == [30, 40, 5, 6, 7]
    assert (record["tokens_per_s"], record["prompt_tokens_per_s"]) == (150.0, 800.0)
    assert 0 <= record["queue_s"] <= record["first_token_s"] <= record["total_s"]
    assert now["totals"]["reused"] - before["reused"] == 4
    assert now["totals"]["generated"] - before["generated"] == 3
    assert "SECRETWORD" not in json.dumps(now) + "".join(gateway.log)


def test_progress_and_queue_are_seen(gateway: GatewayProcess) -> None:
    gateway.play(["progress", 6, 9], ["sleep", 60], ["done", "stop"])
    active = gateway.open_chat(stream=True)
    wait_until(lambda: (status(gateway)["activity"] or {}).get("prompt_done") == 6)
    assert status(gateway)["activity"]["phase"] == "prompt"
    queued = gateway.open_chat()
    wait_until(lambda: status(gateway)["queue"]["waiting"] == 1)
    queued.close()
    wait_until(lambda: status(gateway)["queue"]["waiting"] == 0)
    active.close()
    wait_until(lambda: status(gateway)["activity"] is None)
    assert [record["ending"] for record in status(gateway)["requests"][-2:]] == ["cancel", "cancel"]


def test_a_crash_is_remembered(start_gateway: Start) -> None:
    gateway = start_gateway()
    gateway.wait_ready()
    gateway.play(["stderr", 101], ["crash", 7])
    assert gateway.chat("q").status_code == 503
    wait_until(lambda: status(gateway)["engine"]["restarts"] == 1)
    now = status(gateway)
    assert "exit code 7" in now["engine"]["last_error"]["message"]
    assert (now["requests"][-1]["ending"], now["requests"][-1]["error"]) == ("error", "engine_failed")
    assert now["log"][-1]["text"].startswith("log log")
    wait_until(lambda: any("process gone: yes" in line for line in gateway.log))


# ---- the feed


def test_the_feed_brings_the_past_then_what_is_new(gateway: GatewayProcess) -> None:
    gateway.play(*REPLY)
    gateway.chat("q")
    with feed(gateway) as events:
        first = next(events)
        known = [record["number"] for record in first["requests"]]
        assert known
        gateway.chat("q")
        fresh: list[int] = []
        while not fresh:
            event = next(events)
            assert len(event["samples"]) == 1
            fresh = [record["number"] for record in event["requests"]]
        assert fresh == [known[-1] + 1]
        assert event["machine"]["ram_total_mib"] > 0
        assert event["samples"][0]["cpu"] is not None


def test_the_feed_ends_with_the_server(start_gateway: Start) -> None:
    gateway = start_gateway()
    gateway.wait_ready()
    with feed(gateway) as events:
        next(events)
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(list, events)
            assert gateway.stop(timeout_s=5) == 0
            rest.result(5)


# ---- orders


def order(gateway: GatewayProcess, name: str, **headers: str) -> int:
    return gateway.request("POST", f"/v1/engine/{name}", headers=headers).status_code


def test_unload_and_load(start_gateway: Start) -> None:
    gateway = start_gateway()
    gateway.wait_ready()
    engine = gateway.engine_pid()
    assert order(gateway, "unload") == 202
    assert process_gone(engine)
    assert any("process gone: yes" in line for line in gateway.log)
    assert status(gateway)["engine"]["state"] == "unloaded"
    refused = gateway.chat("q")
    assert (refused.status_code, "unloaded" in refused.text) == (503, True)
    assert order(gateway, "unload") == 202  # nothing to do
    assert order(gateway, "load") == 202
    gateway.wait_ready()
    assert gateway.chat("q").status_code == 200
    assert gateway.engine_pid() != engine


def test_a_restart_ends_the_running_request_and_keeps_the_queue(start_gateway: Start) -> None:
    gateway = start_gateway()
    gateway.wait_ready()
    engine = gateway.engine_pid()
    gateway.play(["text", "a", 0], ["sleep", 60], ["done", "stop"])
    with ThreadPoolExecutor(2) as pool:
        active = pool.submit(gateway.events, "q")
        wait_until(lambda: len(gateway.received()) == 1)
        queued = pool.submit(gateway.chat, "q")
        wait_until(lambda: status(gateway)["queue"]["waiting"] == 1)
        gateway.play(["text", "served", 0], ["done", "stop"])
        assert order(gateway, "restart") == 202
        assert "restarted on request" in active.result()[-1]["error"]["message"]
        assert queued.result().json()["choices"][0]["message"]["content"] == "served"
    assert process_gone(engine)


def test_unload_ends_a_hanging_engine_too(start_gateway: Start) -> None:
    gateway = start_gateway()
    gateway.wait_ready()
    engine = gateway.engine_pid()
    os.kill(engine, signal.SIGSTOP)
    assert order(gateway, "unload") == 202
    assert process_gone(engine)
    assert gateway.stop() == 0


def test_orders_while_loading(start_gateway: Start) -> None:
    gateway = start_gateway(script=json.dumps({"start": [["hang"]]}))
    engine = gateway.engine_pid()
    gateway.play(start=[])
    assert order(gateway, "restart") == 202
    gateway.wait_ready()
    assert process_gone(engine)


def test_pages_of_other_sites_give_no_orders(gateway: GatewayProcess) -> None:
    assert order(gateway, "unload", Origin="https://evil.example") == 403
    assert order(gateway, "unload", Host="evil.example") == 403
    assert gateway.request("GET", "/v1/engine/unload").status_code == 405
    assert status(gateway)["engine"]["state"] == "ready"


def test_with_a_key_everything_needs_it(start_gateway: Start) -> None:
    gateway = start_gateway("--api-key", "k")
    gateway.wait_ready()
    assert order(gateway, "unload") == 401
    for path in ("/v1/status", "/v1/status/feed", "/v1/about", "/metrics"):
        assert gateway.request("GET", path).status_code == 401
    with feed(gateway, Authorization="Bearer k") as events:
        assert next(events)["engine"]["state"] == "ready"
    about = gateway.request("GET", "/v1/about", headers={"x-api-key": "k"}).json()
    assert about["settings"]["api_key"] == "set"
    assert about["settings"]["model"] == "tiny.gguf"


@pytest.mark.parametrize("remote", ["127.0.0.1", "::1", "127.8.8.8", "::ffff:127.0.0.1"])
def test_this_machine_may_give_orders(remote: str) -> None:
    Gatekeeper(GatewayConfig()).check_order(remote)


@pytest.mark.parametrize("remote", ["192.168.1.5", "::ffff:10.0.0.1", "fe80::1%eth0", "", None])
def test_others_need_a_key(remote: str | None) -> None:
    with pytest.raises(Forbidden, match="--api-key"):
        Gatekeeper(GatewayConfig()).check_order(remote)
    Gatekeeper(GatewayConfig(api_key="k")).check_order(remote)  # the key itself is looked at before


# ---- metrics


def test_metrics_grow_with_requests(gateway: GatewayProcess) -> None:
    before = metrics(gateway)
    gateway.play(*REPLY)
    gateway.chat("q")
    after = metrics(gateway)
    growth = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
    expected = {
        "vllm:generation_tokens_total": 3,
        "vllm:prompt_tokens_total": 8,
        "vllm:prefix_cache_hits_total": 4,
        "vllm:spec_decode_num_draft_tokens_total": 2,
        "vllm:spec_decode_num_accepted_tokens_total": 1,
        "vllm:request_success_totalstop": 1,
        "vllm:time_to_first_token_seconds_count": 1,
        "llamacpp:tokens_predicted_total": 3,
        "terrace_expert_hits_total": 30,
        "terrace_expert_lookups_total": 40,
    }
    assert {name: growth.get(name) for name in expected} == expected
    assert (after["vllm:num_requests_running"], after["terrace_engine_ready"]) == (0, 1)
    assert all(value > 0 for name, value in growth.items() if name.endswith("_total"))


def test_running_tokens_are_counted_at_once(gateway: GatewayProcess) -> None:
    before = metrics(gateway)["vllm:generation_tokens_total"]
    gateway.play(["text", "abc", 0], ["sleep", 60], ["done", "stop"])
    connection = gateway.open_chat(stream=True)
    wait_until(lambda: metrics(gateway)["vllm:generation_tokens_total"] - before == 3)
    assert metrics(gateway)["vllm:num_requests_running"] == 1
    connection.close()
    wait_until(lambda: metrics(gateway)["vllm:num_requests_running"] == 0)
    assert metrics(gateway)["vllm:generation_tokens_total"] - before == 3


def test_a_full_queue_is_refused_with_retry_after(start_gateway: Start) -> None:
    gateway = start_gateway("--max-queue", "1")
    gateway.wait_ready()
    gateway.play(["text", "a", 0], ["sleep", 60], ["done", "stop"])
    connections = [gateway.open_chat(stream=True)]
    wait_until(lambda: len(gateway.received()) == 1)
    connections.append(gateway.open_chat(stream=True))
    wait_until(lambda: status(gateway)["queue"]["waiting"] == 1)
    for stream in (False, True):
        refused = gateway.chat("q", stream=stream)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert int(refused.headers["Retry-After"]) > 0
    assert metrics(gateway)["terrace_requests_refused_total"] == 2
    for connection in connections:
        connection.close()

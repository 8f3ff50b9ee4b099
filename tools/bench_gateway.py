"""What the gateway costs: processor time a token of a stream, and time from an engine's line to the client's socket.

    python -m tools.bench_gateway [--tokens N] [--rate R] [--seconds S] [--turns T] [--out FILE.json]

The engine is `tools.line_engine`: letters, no model. Cost: the gateway process's user and system time over a stream, divided
by its tokens, with tokens as fast as they go and at R tokens a second; beside it what it costs asyncio on this machine just to
wake up for a line at that rate and to write it to a socket. Latency: from the moment before the engine writes a
T line to the moment the client has read its event, both on the monotonic clock of this machine.
"""

import argparse
import asyncio
import json
import socket
import sys
import tempfile
import time
from array import array
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil

from tools.gateway_process import GatewayProcess, running
from tools.machine import ForeignLoad, machine_facts

_MESSAGES = [{"role": "user", "content": "the river"}]


@dataclass(frozen=True)
class Api:
    """How one API streams a reply."""

    path: str
    body: dict[str, Any]
    limit: str  # the field for the most tokens
    mark: bytes  # in the event of every token


APIS = {
    "openai": Api("/v1/chat/completions", {"messages": _MESSAGES, "stream": True}, "max_tokens", b'"content":"'),
    "anthropic": Api("/v1/messages", {"messages": _MESSAGES, "stream": True}, "max_tokens", b'"text_delta"'),
    "llamacpp": Api("/completion", {"prompt": "the river", "stream": True}, "n_predict", b'"stop":false'),
}


def stream(gateway: GatewayProcess, api: Api, tokens: int) -> array:
    """Read one reply; the monotonic nanoseconds at which each token's event had come."""
    body = json.dumps({**api.body, api.limit: tokens, "temperature": 0}).encode()
    head = f"POST {api.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    came = array("q")
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=120) as connection:
        connection.sendall(head.encode() + body)
        rest = b""
        while chunk := connection.recv(1 << 18):
            now_ns = time.monotonic_ns()
            *events, rest = (rest + chunk).split(b"\n\n")
            came.extend([now_ns] * sum(api.mark in event for event in events))
    return came


def cost_us(gateway: GatewayProcess, api: Api, tokens: int) -> tuple[float, float]:
    """Microseconds of processor time a token, and the share of the machine that others took meanwhile."""
    process = psutil.Process(gateway.process.pid)
    load, before, own = ForeignLoad(), process.cpu_times(), time.process_time()
    engine = psutil.Process(gateway.engine_pids()[-1])
    engine_before = engine.cpu_times()
    stream(gateway, api, tokens)
    after, engine_after = process.cpu_times(), engine.cpu_times()
    used_s = after.user + after.system - before.user - before.system
    engine_s = engine_after.user + engine_after.system - engine_before.user - engine_before.system
    return used_s * 1e6 / tokens, load.share(used_s + engine_s + time.process_time() - own)


def measure_cost(directory: Path, *, rate: float, tokens: int, turns: int) -> dict[str, Any]:
    """Every API's cost at one rate; 0 = as fast as it goes."""
    engine = f"{sys.executable} -m tools.line_engine --rate {rate}"
    results: dict[str, Any] = {}
    with running(directory, [], engine=engine) as gateway:
        gateway.wait_ready()
        for name, api in APIS.items():
            cost_us(gateway, api, min(tokens, 500))  # what is imported or compiled at the first request
            turn = [cost_us(gateway, api, tokens) for _ in range(turns)]
            results[name] = {
                "us_per_token": [round(us, 1) for us, _ in turn],
                "median_us": round(median(us for us, _ in turn), 1),
                "foreign_load": [round(share, 2) for _, share in turn],
            }
            print(f"  {name}: {results[name]['median_us']} us a token {results[name]['us_per_token']}", flush=True)
    return results


async def _forward(rate: float, tokens: int) -> float:
    """Processor microseconds a line for a pipe's lines written to a socket, and nothing else."""
    here, there = socket.socketpair()
    with here, there:
        engine = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _LINES, str(rate), str(tokens), stdout=asyncio.subprocess.PIPE)  # fmt: skip
        _, writer = await asyncio.open_connection(sock=here)
        await asyncio.sleep(0.3)
        own = time.process_time()
        while engine.stdout is not None and (line := await engine.stdout.read(1 << 16)):
            writer.write(b"data: " + line + b"\n\n")
        own = time.process_time() - own
        await engine.wait()
        writer.close()
    return round(own * 1e6 / tokens, 1)


_LINES = """
import os, sys, time
began, rate = time.perf_counter(), float(sys.argv[1])
for number in range(int(sys.argv[2])):
    time.sleep(max(began + number / rate - time.perf_counter(), 0))
    os.write(1, b"T 101\\n")
"""


def measure_latency(directory: Path, *, rate: float, tokens: int) -> dict[str, Any]:
    """Every API's time from line to socket, in milliseconds."""
    stamps = directory / "stamps"
    engine = f"{sys.executable} -m tools.line_engine --rate {rate} --stamps {stamps}"
    results: dict[str, Any] = {}
    with running(directory, [], engine=engine) as gateway:
        gateway.wait_ready()
        for name, api in APIS.items():
            stream(gateway, api, 50)
            load = ForeignLoad()
            came = stream(gateway, api, tokens)
            said = array("q", stamps.read_bytes())
            if len(came) != len(said):
                raise RuntimeError(f"{name}: {len(said)} lines became {len(came)} events")
            delays_ms = [(there - here) / 1e6 for here, there in zip(said, came, strict=True)]
            cuts = quantiles(delays_ms, n=100)
            results[name] = {
                "median_ms": round(median(delays_ms), 3), "p95_ms": round(cuts[94], 3), "p99_ms": round(cuts[98], 3),
                "max_ms": round(max(delays_ms), 3), "all_load": round(load.share(0.0), 2),
            }  # fmt: skip
            print(f"  {name}: {results[name]}", flush=True)
    return results


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=20000)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a stream at that rate")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    paced_tokens = max(int(options.rate * options.seconds), 100)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        print("cost, as fast as it goes")
        fast = measure_cost(directory, rate=0, tokens=options.tokens, turns=options.turns)
        print(f"cost at {options.rate:g} tokens/s")
        paced = measure_cost(directory, rate=options.rate, tokens=paced_tokens, turns=max(options.turns // 2, 1))
        forwarding = asyncio.run(_forward(options.rate, paced_tokens))
        print(f"  a line from a pipe to a socket: {forwarding} us")
        print(f"latency at {options.rate:g} tokens/s")
        latency = measure_latency(directory, rate=options.rate, tokens=paced_tokens)
    result = {
        "command": "python -m tools.bench_gateway " + " ".join(sys.argv[1:]),
        "machine": machine_facts(),
        "tokens": options.tokens, "rate_per_s": options.rate,
        "cost_as_fast_as_it_goes": fast, "cost_paced": paced, "bare_forwarding_us": forwarding, "latency": latency,
    }  # fmt: skip
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

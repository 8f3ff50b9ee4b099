"""Wears the server down and counts what breaks: many requests, random cancels, kills of both processes, a full disk.

    python -m tools.soak [--requests 1000] [--cancels 200] [--engine-kills 8] [--stops 3] [--gateway-kills 5] [--seed 1]
                         [--model PACK] [--lines] [--out FILE.json]

The real gateway and the real engine on the embedded pack; `--lines` puts `tools.line_engine` in the engine's place. Three
parts: requests of every API on four connections at once, with cancels, `kill -9` and SIGSTOP of the engine at random
points; `kill -9` of the gateway in the middle of requests; a log on a full disk. Exit code 1 if anything of what
docs/reliability.md promises did not hold.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tools.gateway_process import GatewayProcess, running
from tools.machine import machine_facts
from tools.soak_client import FIXED, ask, random_request

_WORKERS = 4
_PATIENCE_S = 90.0  # a request that takes longer hangs
_LEAVE_S = 8.0  # an engine whose gateway is gone has to leave in this time; it looks every few seconds
_FLAGS = ["--ping-timeout", "5", "--silence-timeout", "30"]


@dataclass
class Memory:
    """Resident memory over time, MiB, and the gateway's open files and threads."""

    gateway_mib: list[float] = field(default_factory=list)
    engine_mib: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def note(self, gateway: GatewayProcess) -> None:
        """One more reading."""
        process = psutil.Process(gateway.process.pid)
        self.gateway_mib.append(round(process.memory_info().rss / 2**20, 1))
        self.files.append(process.num_fds())
        self.threads.append(process.num_threads())
        try:
            self.engine_mib.append(round(psutil.Process(gateway.engine_pids()[-1]).memory_info().rss / 2**20, 1))
        except psutil.NoSuchProcess:
            self.engine_mib.append(0.0)  # it is being restarted

    def growth_mib(self) -> float:
        """Of the gateway, from the end of the first fifth to the end."""
        return round(self.gateway_mib[-1] - self.gateway_mib[len(self.gateway_mib) // 5], 1)


class Soak:
    """One run; `problems` is what must be empty."""

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self.options = options
        self.directory = directory
        self.rng = random.Random(options.seed)
        self.engine = f"{sys.executable} -m tools.line_engine --rate 400" if options.lines else None
        self.model = None if options.lines else options.model
        self.problems: list[str] = []
        self.pids: set[int] = set()

    def start(self) -> Any:
        """A gateway of the kind that is soaked."""
        return running(self.directory, _FLAGS, engine=self.engine, model=self.model)

    def check(self, holds: bool, problem: str) -> None:
        """Note a problem."""
        if not holds:
            print(f"  PROBLEM: {problem}", flush=True)
            self.problems.append(problem)

    # ---- requests, cancels, and an engine that dies

    def requests(self) -> dict[str, Any]:
        """The first part."""
        wanted, rng = self.options.requests, self.rng
        cancelled = set(rng.sample(range(wanted), self.options.cancels))
        events = [*["kill"] * self.options.engine_kills, *["stop"] * self.options.stops]
        rng.shuffle(events)
        at = dict(zip(sorted(rng.sample(range(wanted // 20, wanted), len(events))), events, strict=True))
        outcomes: Counter[str] = Counter()
        memory, lock, began_s = Memory(), threading.Lock(), time.monotonic()
        longest_s = 0.0
        with self.start() as gateway:
            gateway.wait_ready()
            reference = ask(gateway.port, FIXED, timeout_s=_PATIENCE_S).text
            plans = [
                (n, random_request(rng, long=n in cancelled), rng.uniform(0, 0.8) if n in cancelled else None)
                for n in range(wanted)
            ]

            def work(plan: tuple[int, Any, float | None]) -> None:
                nonlocal longest_s
                number, request, leave_s = plan
                if (event := at.get(number)) is not None:
                    self._hurt(gateway, event)
                outcome = ask(gateway.port, request, timeout_s=_PATIENCE_S, leave_s=leave_s)
                with lock:
                    outcomes[outcome.kind] += 1
                    longest_s = max(longest_s, outcome.seconds)
                    if outcome.kind not in ("ok", "left", "engine_failed"):
                        self.check(False, f"request {number} ({request.path}): {outcome.kind} {outcome.text[:200]}")
                    if number % max(wanted // 40, 1) == 0:
                        memory.note(gateway)

            with ThreadPoolExecutor(_WORKERS) as pool:
                list(pool.map(work, plans))
            gateway.wait_ready()
            status = self._quiet(gateway)
            again = ask(gateway.port, FIXED, timeout_s=_PATIENCE_S)
            memory.note(gateway)
            self.check(again.text == reference, f"the fixed request answers {again.text!r}, not {reference!r} as before")
            restarts = status["engine"]["restarts"]
            self.check(restarts >= len(events), f"{restarts} restarts after the engine was hurt {len(events)} times")
            self.check(memory.growth_mib() < 10, f"the gateway grew by {memory.growth_mib()} MiB")
            self.check(memory.files[-1] - memory.files[0] < 8, f"open files grew from {memory.files[0]} to {memory.files[-1]}")
            self.pids |= set(gateway.engine_pids())
            seconds = time.monotonic() - began_s
        self.check(gateway.process.returncode == 0, f"the gateway left with {gateway.process.returncode}")
        text = gateway.log.read_text()
        clean = text.count("process gone: yes")
        self.check(clean == len(self.pids), f"{len(self.pids)} engines, {clean} of them logged as gone")
        return {
            "requests": wanted, "outcomes": dict(sorted(outcomes.items())), "cancels": self.options.cancels,
            "engine_kills": self.options.engine_kills, "engine_stops": self.options.stops,
            "restarts": restarts, "seconds": round(seconds, 1), "longest_request_s": round(longest_s, 1),
            "gateway_mib": [memory.gateway_mib[0], memory.gateway_mib[len(memory.gateway_mib) // 5], memory.gateway_mib[-1]],
            "gateway_growth_mib": memory.growth_mib(), "gateway_files": [memory.files[0], memory.files[-1]],
            "gateway_threads": [memory.threads[0], memory.threads[-1]],
            "engine_mib": [min(mib for mib in memory.engine_mib if mib), max(memory.engine_mib)],
            "engines_logged_as_gone": clean, "same_text_afterwards": again.text == reference,
        }  # fmt: skip

    def _hurt(self, gateway: GatewayProcess, event: str) -> None:
        pid = gateway.engine_pids()[-1]
        print(f"  {event} of engine process {pid}", flush=True)
        try:
            os.kill(pid, signal.SIGKILL if event == "kill" else signal.SIGSTOP)
        except ProcessLookupError:
            self.check(False, f"the engine {pid} was gone before its {event}")

    def _quiet(self, gateway: GatewayProcess) -> dict[str, Any]:
        """The status once nothing is under way; a lock that leaked never gets there."""
        end_s = time.monotonic() + 30
        while True:
            status = gateway.status()
            if status["activity"] is None and status["queue"]["waiting"] == 0:
                return status
            if time.monotonic() > end_s:
                self.check(False, f"it does not come to rest: {status['activity']}, {status['queue']}")
                return status
            time.sleep(0.1)

    # ---- a gateway that dies

    def gateway_kills(self) -> dict[str, Any]:
        """The second part: no engine outlives its gateway, and the next gateway serves."""
        left_after_s: list[float] = []
        for _ in range(self.options.gateway_kills):
            with self.start() as gateway:
                gateway.wait_ready()
                with ThreadPoolExecutor(_WORKERS) as pool:
                    asked = [pool.submit(ask, gateway.port, random_request(self.rng), timeout_s=_PATIENCE_S) for _ in range(12)]
                    time.sleep(self.rng.uniform(0.0, 1.5))
                    gateway.process.kill()
                    gateway.process.wait()
                    began_s = time.monotonic()
                    engine = gateway.engine_pids()[-1]
                    while _lives(engine) and time.monotonic() - began_s < _LEAVE_S:
                        time.sleep(0.02)
                    left_after_s.append(round(time.monotonic() - began_s, 2))
                    self.check(not _lives(engine), f"engine {engine} outlived its gateway by {_LEAVE_S} s")
                    kinds = Counter(one.result().kind for one in asked)
                    self.check(not kinds["hang"], f"requests hang after the gateway was killed: {kinds}")
                self.pids |= set(gateway.engine_pids())
        return {"gateway_kills": self.options.gateway_kills, "engine_left_after_s": left_after_s}

    # ---- a disk that is full

    def full_disk(self) -> dict[str, Any]:
        """The third part: every write to the log fails, while the engine is killed, which is logged."""
        served, engines = Counter[str](), set[int]()
        with running(self.directory, _FLAGS, engine=self.engine, model=self.model, log=Path("/dev/full")) as gateway:
            gateway.wait_ready()
            for number in range(40):
                if (pid := gateway.status()["engine"]["pid"]) is not None:
                    engines.add(pid)
                    if number in (10, 20):
                        os.kill(pid, signal.SIGKILL)
                served[ask(gateway.port, random_request(self.rng), timeout_s=_PATIENCE_S).kind] += 1
            gateway.wait_ready()
            engines.add(self._quiet(gateway)["engine"]["pid"])
        self.check(gateway.process.returncode == 0, f"with a full disk the gateway left with {gateway.process.returncode}")
        self.check(set(served) <= {"ok", "engine_failed"}, f"with a full disk: {dict(served)}")
        self.pids |= engines
        return {"engines": len(engines), "outcomes": dict(served)}

    def orphans(self) -> list[int]:
        """Engines of any part that still live."""
        alive = sorted(pid for pid in self.pids if _lives(pid))
        self.check(not alive, f"engines that still live: {alive}")
        return alive


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def main() -> int:
    """The command; 1 if something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = {"requests": 1000, "cancels": 200, "engine-kills": 8, "stops": 3, "gateway-kills": 5, "seed": 1}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--model", type=Path, default=Path(__file__).parents[1] / "packs" / "tiny")
    parser.add_argument("--lines", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        soak = Soak(options, Path(name))
        result: dict[str, Any] = {"command": "python -m tools.soak " + " ".join(sys.argv[1:]), "machine": machine_facts()}
        for title, part in (
            ("requests", soak.requests), ("gateway_kills", soak.gateway_kills), ("full_disk", soak.full_disk)
        ):  # fmt: skip
            print(title, flush=True)
            result[title] = part()
            print(" ", result[title], flush=True)
        result["orphans"] = soak.orphans()
        result["problems"] = soak.problems
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print("problems:", soak.problems or "none")
    return 1 if soak.problems else 0


if __name__ == "__main__":
    sys.exit(main())

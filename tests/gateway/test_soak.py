"""The tools that wear down and measure the server, in small: they run, and what they promise to find holds."""

import json
import subprocess
import sys
from pathlib import Path

from tests.gateway.harness import REPOSITORY


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=180)


def test_a_small_soak_finds_nothing(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    sizes = ["--requests", "40", "--cancels", "8", "--engine-kills", "1", "--stops", "1", "--gateway-kills", "1"]
    done = run("tools.soak", "--lines", *sizes, "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert result["problems"] == result["orphans"] == []
    assert sum(result["requests"]["outcomes"].values()) == 40
    assert result["requests"]["restarts"] >= 2


def test_the_benchmark_of_the_gateway(tmp_path: Path) -> None:
    out = tmp_path / "cost.json"
    done = run("tools.bench_gateway", "--tokens", "300", "--rate", "300", "--seconds", "0.5", "--turns", "1", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    for name in ("openai", "anthropic", "llamacpp"):
        assert result["cost_as_fast_as_it_goes"][name]["median_us"] >= 0
        assert 0 < result["latency"][name]["median_ms"] <= result["latency"][name]["max_ms"]

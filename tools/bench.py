"""Times the engine, and llama.cpp beside it: prompt and decode tokens per second, in one run on one file.

    python -m tools.bench [--model FILE.gguf] [--peer] [--write-json docs/results/bench.json]
    python -m tools.bench --write FILE.gguf [--shape qwen3-30b-a3b]      # only make the model, and prove that it is fit

Without --model it makes the "small" one in a temporary folder. Each side has a process of its own, never two at once, in
turns (ours, peer, peer, ours, …), with as many threads; the peer with its weights repacked, its fastest way.
The engine is the real one, driven through its pipe. A turn in which others used the machine is taken again.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from engine.gguf import open_model
from tools.bench_check import UnfitModel, examine
from tools.bench_model import SHAPES, write_bench_model
from tools.machine import QUIET, ForeignLoad, machine_facts, wait_until_quiet

_RETRIES = 6


@dataclass(frozen=True)
class Turn:
    """One process, one measurement."""

    side: str  # "ours" or "peer"
    prompt_tps: float
    decode_tps: float
    foreign_load: float
    details: dict[str, str]


def measure_ours(model: Path, *, prompt: list[int], generate: int, threads: int) -> Turn:
    """Through the engine's pipe: a whole request first, so that weights and kernels are there, then the one that counts."""
    command = [sys.executable, "-m", "engine", "--model", str(model), "--pool-workers", str(threads),
               "--max-context", str(2 * (len(prompt) + generate))]  # fmt: skip
    ids = ",".join(map(str, prompt))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        info = dict(word.split("=", 1) for word in _await(process, "READY")["INFO"].split()[1:])
        print(f"GEN 8 ignore_eos=1 {ids}", file=process.stdin, flush=True)
        _await(process, "DONE")
        usage, load = _cpu_s(process.pid), ForeignLoad()
        print(f"GEN {generate} ignore_eos=1 {ids}", file=process.stdin, flush=True)
        lines = _await(process, "DONE")
        foreign = load.share(_cpu_s(process.pid) - usage)
        print("QUIT", file=process.stdin, flush=True)
        process.wait(30)
    words = lines["DONE"].split()
    generated, prompt_ms, decode_ms = int(words[1]), float(words[3]), float(words[4])
    details = {key: info[key] for key in ("isa", "pool_workers", "kv", "engine")}
    details["distinct_tokens"] = str(len(set(lines["T"].split())))
    # the first token comes out of the prompt, so decoding made one less
    return Turn("ours", len(prompt) * 1e3 / prompt_ms, (generated - 1) * 1e3 / decode_ms, foreign, details)


def _await(process: subprocess.Popen, verb: str) -> dict[str, str]:
    """Read up to the line of that verb; lines by verb, those of one verb joined by blanks."""
    lines: dict[str, str] = {}
    for line in process.stdout:
        found, _, rest = line.rstrip("\n").partition(" ")
        lines[found] = f"{lines.get(found, '' if found == 'T' else found)} {rest}"
        if found == "ERR":
            raise RuntimeError(f"the engine answered: {line.strip()}")
        if found == verb:
            return lines
    raise RuntimeError(f"the engine ended before {verb}")


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def measure_peer(model: Path, *, prompt: int, generate: int, threads: int) -> Turn:
    """tools/peer.py's bench in a process of its own."""
    command = [sys.executable, "-m", "tools.peer", "bench", str(model), "-p", str(prompt), "-n", str(generate),
               "-t", str(threads), "--ctx", str(2 * (prompt + generate))]  # fmt: skip
    before, load = psutil.Process().cpu_times(), ForeignLoad()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = psutil.Process().cpu_times()
    own_s = after.children_user + after.children_system - before.children_user - before.children_system
    foreign = load.share(own_s)
    if done.returncode:
        raise RuntimeError(f"the peer failed: {done.stderr.strip().splitlines()[-1:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    return Turn("peer", result["prompt_tps"], result["decode_tps"], foreign, {})


def quiet_turn(measure: Any) -> Turn:
    """Take a measurement until nobody disturbed it; the least disturbed one if that does not happen."""
    turns: list[Turn] = []
    for _ in range(_RETRIES):
        wait_until_quiet()
        turns.append(measure())
        if turns[-1].foreign_load <= QUIET:
            break
        print(f"  others used {turns[-1].foreign_load:.0%} of the machine; once more", file=sys.stderr)
    return min(turns, key=lambda turn: turn.foreign_load)


def compare(model: Path, *, with_peer: bool, prompt: int, generate: int, threads: int, repetitions: int) -> dict[str, Any]:
    """Medians of each side, ratios, and every turn."""
    with open_model(model) as files:
        vocab = files.tensors["token_embd.weight"].shape[0]
    ids = np.random.default_rng(2).integers(0, vocab, prompt).tolist()
    sides = {"ours": lambda: measure_ours(model, prompt=ids, generate=generate, threads=threads)}
    if with_peer:
        sides["peer"] = lambda: measure_peer(model, prompt=prompt, generate=generate, threads=threads)
    turns: list[Turn] = []
    for repetition in range(repetitions):
        for side in list(sides) if repetition % 2 == 0 else list(sides)[::-1]:
            turns.append(quiet_turn(sides[side]))
            print(f"{side:5} prompt {turns[-1].prompt_tps:8.1f}  decode {turns[-1].decode_tps:7.2f} tokens/s", file=sys.stderr)
    result: dict[str, Any] = {}
    for side in sides:
        own = [turn for turn in turns if turn.side == side]
        result[side] = {
            "prompt_tps": round(statistics.median(turn.prompt_tps for turn in own), 1),
            "decode_tps": round(statistics.median(turn.decode_tps for turn in own), 2),
            "prompt_tps_each": [round(turn.prompt_tps, 1) for turn in own],
            "decode_tps_each": [round(turn.decode_tps, 2) for turn in own],
            "foreign_load_each": [round(turn.foreign_load, 3) for turn in own],
            **own[-1].details,
        }
    if with_peer:
        for phase in ("prompt", "decode"):
            result[f"{phase}_ratio"] = round(result["ours"][f"{phase}_tps"] / result["peer"][f"{phase}_tps"], 3)
    return result


def main() -> int:
    """Command line entry; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a mixture-of-experts GGUF file; default: a small one made for the run")
    parser.add_argument("--peer", action="store_true", help="time llama.cpp too (see tools/peer.py)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the benchmark's model there and end")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="small")
    parser.add_argument("--write-json", type=Path, metavar="FILE", help="also write the result as JSON")
    parser.add_argument("-p", "--prompt", type=int, default=512)
    parser.add_argument("-n", "--generate", type=int, default=64)
    parser.add_argument("-t", "--threads", type=int, default=psutil.cpu_count(logical=False))
    parser.add_argument("-r", "--repetitions", type=int, default=5)
    args = parser.parse_args()
    try:
        return _run(args)
    except (UnfitModel, RuntimeError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


def _run(args: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        model = args.write or args.model or Path(folder) / f"{args.shape}.gguf"
        if args.write or not args.model:
            write_bench_model(model, SHAPES[args.shape])
        report = examine(model, workers=args.threads)
        print(f"{model.name}: {report.tokens} tokens reach {report.distinct_experts} of {report.experts} experts, the top "
              f"quarter takes {report.top_quarter_share}, largest |x| {report.largest_residual}", file=sys.stderr)  # fmt: skip
        report.refuse_unfit()
        if args.write:
            return 0
        result = compare(model, with_peer=args.peer, prompt=args.prompt, generate=args.generate, threads=args.threads,
                         repetitions=args.repetitions)  # fmt: skip
        document = {
            "command": "python -m tools.bench " + " ".join(sys.argv[1:]),
            "model": {"file": model.name, "bytes": model.stat().st_size, "routing": report.as_json()},
            "prompt_tokens": args.prompt,
            "generated_tokens": args.generate,
            "threads": args.threads,
            **result,
            "machine": machine_facts(),
        }
    if args.peer:
        document["peer_version"] = "llama.cpp v0.5.0 (@node-llama-cpp/linux-x64 3.22.1), weights repacked"
    text = json.dumps(document, indent=1)
    print(text)
    if args.write_json:
        args.write_json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

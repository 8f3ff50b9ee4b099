"""What the CUDA backend does on this machine's card: tokens per second, and where the time of a window goes.

    python -m tools.device_check MODEL.gguf [--write qwen3-30b-a3b [--layers N]] [--json FILE] [--depths 0,2048]
        [--windows] [--profile] [--any-order]

--write makes the benchmark's model first (tools/bench_model.py). Rates are of three runs, of tokens that the engine's own loop
picks, greedily and drawn. --windows times whole windows of every size. The profile, of a window and of a prompt's chunk,
captures all launches of one kind as a graph of its own and times that: what a kernel costs behind one of its kind, weights
coming from memory. --any-order compiles products without the order that the CPU shares, to see what it costs. Correctness is
tested by tests/kernels/cuda, with a card on it.
"""

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from engine.backend.base import Draw
from engine.backend.cuda import toolchain
from engine.backend.cuda.launch import Launch
from engine.backend.cuda.products import WINDOWS
from engine.config import EngineConfig
from engine.session import Session, load_session
from tools.bench_check import examine
from tools.bench_model import SHAPES, write_bench_model
from tools.machine import machine_facts

_GENERATED = 128
_DRAW = Draw(top_k=20, top_p=0.95, min_p=0.0, temperature=0.8, seed=1)


def decode_rates(session: Session, depth: int, *, draw: Draw | None = None, repeats: int = 3) -> list[float]:
    """Tokens per second behind a text of `depth` tokens."""
    rng, rates = np.random.default_rng(depth), []
    text = rng.integers(0, session.vocab_size, max(depth, 1)).astype(np.int32)
    for _ in range(repeats):
        session.reset()
        for first in range(0, len(text) - 1, session.chunk_size):
            session.step(text[first:min(first + session.chunk_size, len(text) - 1)], logits="none")
        list(session.run_ahead(int(text[-1]), limit=8, stop_ids=(), draw=draw))
        started_s = time.perf_counter()
        picked = list(session.run_ahead(5, limit=_GENERATED, stop_ids=(), draw=draw))
        rates.append(len(picked) / (time.perf_counter() - started_s))
    return rates


def prompt_rates(session: Session, length: int, *, repeats: int = 3) -> list[float]:
    """Tokens per second of reading a prompt of `length` tokens."""
    text, rates = np.random.default_rng(length).integers(0, session.vocab_size, length).astype(np.int32), []
    for _ in range(repeats + 1):  # the first one warms up
        session.reset()
        started_s = time.perf_counter()
        for first in range(0, length, session.chunk_size):
            stop = min(first + session.chunk_size, length)
            session.step(text[first:stop], logits="last" if stop == length else "none")
        rates.append(length / (time.perf_counter() - started_s))
    return rates[1:]


def against_cpu(model: Path, *, tokens: int, compared: int = 64) -> dict:
    """The last `compared` tokens of a random text, read by both backends: KL(CPU || card), how often the argmax is one."""
    rows, text = {}, None
    for backend in ("cuda", "cpu"):
        config = EngineConfig(model=model, backend=backend, max_context=tokens)
        session = load_session(SimpleNamespace(model=model, ple=None, stop_tokens=()), config)
        if text is None:
            text = np.random.default_rng(1).integers(0, session.vocab_size, tokens).astype(np.int32)
        started_s = time.perf_counter()
        for first in range(0, tokens - compared, session.chunk_size):
            session.step(text[first:min(first + session.chunk_size, tokens - compared)], logits="none")
        found = [session.step(text[i:i + session.window_max], logits="all").copy()
                 for i in range(tokens - compared, tokens, session.window_max)]
        rows[backend] = np.concatenate(found).astype(np.float64)
        print(backend, "read", tokens, "tokens in", round(time.perf_counter() - started_s, 2), "s", flush=True)
        session.close()
    log_p, log_q = (x - x.max(-1, keepdims=True) for x in (rows["cpu"], rows["cuda"]))
    log_p, log_q = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (log_p, log_q))
    divergence = (np.exp(log_p) * (log_p - log_q)).sum(-1)
    same = (rows["cpu"].argmax(-1) == rows["cuda"].argmax(-1)).mean()
    return {"model": model.name, "tokens": tokens, "kl_mean": float(divergence.mean()),
            "kl_median": float(np.median(divergence)), "kl_max": float(divergence.max()), "argmax_agreement": float(same)}


def profile(session: Session, launches: list[Launch]) -> list[dict]:
    """Of every kind of launch: how many there are, and microseconds for one, alone and behind its own kind. The window block
    is as the last run left it."""
    device, kinds = session._backend.device, defaultdict(list)
    for launch in launches:
        kinds[launch.program, launch.kernel, launch.defines, launch.grid].append(launch)
    rows = []
    for (program, kernel, defines, grid), found in kinds.items():
        times = {}
        for dependent in (False, True):
            device.begin_capture()
            for i, launch in enumerate(found):
                device.run(launch, dependent=dependent and i > 0)
            graph = device.end_capture()
            times[dependent] = _median_s(device, graph) / len(found) * 1e6
        rows.append({"kernel": f"{program}.{kernel}", "defines": dict(defines), "grid": grid, "count": len(found),
                     "us": round(times[False], 2), "us_dependent": round(times[True], 2)})
    return rows


def _median_s(device, graph, repeats: int = 15) -> float:
    times = []
    for _ in range(repeats):
        device.synchronize()
        started_s = time.perf_counter()
        device.launch_graph(graph)
        device.synchronize()
        times.append(time.perf_counter() - started_s)
    return statistics.median(times)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--write", choices=SHAPES)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--depths", default="0,2048")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--prefill", type=int, default=2048)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--windows", action="store_true")
    parser.add_argument("--any-order", action="store_true")
    parser.add_argument("--examine", action="store_true", help="prove first that the model is fit to be timed")
    parser.add_argument("--against-cpu", type=int, metavar="TOKENS", help="only compare both backends on a text so long")
    arguments = parser.parse_args()
    report: dict = {"command": " ".join(["python -m tools.device_check", *sys.argv[1:]]), "machine": machine_facts()}
    if arguments.any_order:
        toolchain._OPTIONS = (*toolchain._OPTIONS, "-DANY_ORDER")
    if arguments.against_cpu:
        report["against_cpu"] = against_cpu(arguments.model, tokens=arguments.against_cpu)
        print(report["against_cpu"], flush=True)
        _write(arguments.json, report)
        return
    if arguments.write and not arguments.model.exists():
        shape = SHAPES[arguments.write]
        started_s = time.perf_counter()
        write_bench_model(arguments.model, replace(shape, layers=arguments.layers) if arguments.layers else shape)
        print(f"written in {time.perf_counter() - started_s:.1f} s", flush=True)
    if arguments.examine:
        fit = examine(arguments.model)
        fit.refuse_unfit()
        report["fit"] = fit.as_json()
        print("least distinct experts a layer", min(fit.distinct_experts), "of", fit.experts, "largest residual",
              fit.largest_residual, flush=True)
    started_s = time.perf_counter()
    config = EngineConfig(model=arguments.model, backend="cuda", max_context=8192, prefill=arguments.prefill)
    session = load_session(SimpleNamespace(model=arguments.model, ple=None, stop_tokens=()), config)
    report |= {"load_s": round(time.perf_counter() - started_s, 2), "info": session.info(), "decode": {}, "drawn": {}}
    print("loaded", report["load_s"], session.info(), flush=True)
    for depth in map(int, arguments.depths.split(",")):
        report["decode"][depth] = [round(rate, 1) for rate in decode_rates(session, depth)]
        report["drawn"][depth] = [round(rate, 1) for rate in decode_rates(session, depth, draw=_DRAW)]
        print("decode at", depth, report["decode"][depth], "drawn", report["drawn"][depth], flush=True)
    if arguments.prompt:
        report["prompt"] = {arguments.prompt: [round(rate, 1) for rate in prompt_rates(session, arguments.prompt)]}
        print("prompt", report["prompt"], flush=True)
    backend, tokens = session._backend, np.zeros(session.chunk_size, np.int32)
    if arguments.windows:
        report["windows_us"] = {}
        for size in WINDOWS:
            backend.run(tokens[:size], position=1024, out_rows=size)
            report["windows_us"][size] = round(_median_s(backend.device, backend._graphs[size]) * 1e6, 1)
        print("windows of 1, 2, 4, 8 tokens", report["windows_us"], "us", flush=True)
    if arguments.profile:
        backend.run(tokens[:1], position=1024, out_rows=1)
        report["profile"] = {"window": profile(session, backend.launches(1))}
        if backend._prompt is not None:
            backend.run(tokens, position=0, out_rows=1)
            report["profile"]["prompt"] = profile(session, backend._prompt)
        for part, rows in report["profile"].items():
            for row in rows:
                print(part, row, flush=True)
    _write(arguments.json, report)
    session.close()


def _write(path: Path | None, report: dict) -> None:
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

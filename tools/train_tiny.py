#!/usr/bin/env python3
"""Trains the embedded pack's model on one GPU, in parts of a few minutes each.

    python -m tools.tiny_corpus DATA                       # once: tokenizer and tokenised texts
    python -m tools.train_tiny DATA OUT --seconds 540 --begin 0 --end 0.4
    python -m tools.train_tiny DATA OUT2 --seconds 540 --begin 0.4 --end 1 --resume OUT

`--begin` and `--end` say which share of the whole schedule this part runs; a part needs only the weights of the one
before (its optimizer state is used too if --state names a file that survived).
"""
from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from pathlib import Path

import numpy as np
import torch

from tools.tiny import checkpoint
from tools.tiny.config import TinyConfig
from tools.tiny.feed import Feed, held_out
from tools.tiny.measure import evaluate, sample
from tools.tiny.model import TinyModel, initial
from tools.tiny.optim import Muon, is_muon, rate
from tools.tiny.quants import rounded_q4

WARM_UP_STEPS = 150


class Trainer:
    """Weights, optimizers and the step; on the device."""

    def __init__(self, args: argparse.Namespace, config: TinyConfig):
        self.args, self.device = args, args.device
        start = checkpoint.load(args.resume)[0] if args.resume else {k: v.numpy() for k, v in
                                                                     initial(config, args.seed).items()}
        self.weights = {k: torch.tensor(v, device=self.device).requires_grad_() for k, v in start.items()}
        dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        compiled = (lambda f: torch.compile(f, dynamic=False, fullgraph=True)) if args.compile else (lambda f: f)
        self.model = TinyModel(config, dtype=dtype, wrap=compiled)
        self.plain = TinyModel(config, dtype=dtype)                          # for evaluation, other shapes
        self.round = compiled(rounded_q4)
        matrices = {k: v for k, v in self.weights.items() if is_muon(k, v.ndim) and "per_layer" not in k}
        self.muon = Muon(matrices, decay=0.1)
        rest = {k: v for k, v in self.weights.items() if k not in matrices}
        fast = [v for k, v in rest.items() if k.startswith(("token_embd", "per_layer", "output.w"))]
        slow = [v for k, v in rest.items() if not k.startswith(("token_embd", "per_layer", "output.w"))]
        self.adam = torch.optim.AdamW([{"params": fast, "peak": args.rate}, {"params": slow, "peak": args.rate}],
                                      betas=(0.9, 0.95), eps=1e-10, weight_decay=0, fused=self.device == "cuda")

    def rounded(self) -> dict[str, torch.Tensor]:
        """The weights with the four-bit ones on their grid."""
        return {k: self.round(v) if k.endswith(checkpoint.BLOCKY) else v for k, v in self.weights.items()}

    def step(self, rows: np.ndarray, scale: float, *, on_grid: bool) -> dict[str, torch.Tensor]:
        rows_t = torch.from_numpy(rows.astype(np.int64)).to(self.device, non_blocking=True)
        ids, target = rows_t[:, :-1].contiguous(), rows_t[:, 1:].contiguous()
        used = self.rounded() if on_grid else self.weights
        losses = self.model.losses(ids, target, used, teach_rows=self.args.teach_rows)
        total = losses["main"] + 0.3 * losses["draft"] + 0.01 * losses["balance"] + 0.1 * losses["indexer"]
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        for group in self.adam.param_groups:
            group["lr"] = group["peak"] * scale
        self.muon.step(self.args.rate * scale)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        for p in self.weights.values():
            p.grad = None
        return {**{k: v.detach() for k, v in losses.items()}, "norm": norm.detach()}

    def save(self, folder: Path, *, four_bit: bool, note: dict) -> None:
        """Writes a checkpoint beside the old one, then puts it in its place, so that a copy taken meanwhile is whole."""
        new = folder.with_name(folder.name + ".new")
        checkpoint.save({k: v.detach().float().cpu().numpy() for k, v in self.weights.items()}, new,
                        four_bit=four_bit, note=note)
        shutil.rmtree(folder)
        new.rename(folder)

    def keep(self) -> None:
        """Remembers the weights, for `recover`."""
        self.good = {k: v.detach().clone() for k, v in self.weights.items()}

    @torch.no_grad()
    def recover(self) -> None:
        """Goes back to the remembered weights and forgets the optimizers' state, after a loss that was not finite."""
        for k, v in self.weights.items():
            v.copy_(self.good[k])
        self.adam.state.clear()
        self.muon.groups = [(shape, members, None) for shape, members, _ in self.muon.groups]

    def save_state(self, path: Path) -> None:
        torch.save({"weights": self.weights, "adam": self.adam.state_dict(),
                    "muon": [mean for _, _, mean in self.muon.groups]}, path)

    def load_state(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device)
        with torch.no_grad():
            for k, v in self.weights.items():
                v.copy_(state["weights"][k])
        peaks = [g["peak"] for g in self.adam.param_groups]
        self.adam.load_state_dict(state["adam"])
        for group, peak in zip(self.adam.param_groups, peaks, strict=True):
            group["peak"] = peak
        self.muon.groups = [(s, m, mean) for (s, m, _), mean in zip(self.muon.groups, state["muon"], strict=True)]


def train(args: argparse.Namespace) -> None:
    started = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    config = TinyConfig()
    feed = Feed(args.data, rows=args.batch, length=args.length, seed=args.seed, workers=args.workers)
    exams = {k: v[:args.exam_rows] for k, v in held_out(args.data, args.length).items()}
    torch.set_float32_matmul_precision("high")
    trainer = Trainer(args, config)
    warm = not (args.state and args.state.exists())
    if not warm:
        trainer.load_state(args.state)
    note = checkpoint.load(args.resume)[1] if args.resume else {"tokens": 0}
    recoveries = 0
    trainer.keep()
    tokens, log, step, begun, shown, saved = note["tokens"], [], 0, None, time.monotonic(), time.monotonic()
    finish = started + args.seconds
    while time.monotonic() < finish and step != args.max_steps:
        if step == 5:                                                        # compilation is over
            if args.device == "cuda":
                torch.cuda.synchronize()
            begun = time.monotonic()
            print(f"first steps took {begun - started:.1f} s", flush=True)
        part = 0.0 if begun is None else (time.monotonic() - begun) / (finish - begun)
        progress = args.begin + (args.end - args.begin) * part
        scale = rate(progress, hold=args.hold) * (min(1, (step + 1) / WARM_UP_STEPS) if warm else 1)
        on_grid = progress >= args.grid_from
        result = trainer.step(feed.next(), scale, on_grid=on_grid)
        step += 1
        tokens += args.batch * args.length
        if step % args.log_every == 0:
            main, draft, balance, indexer, norm = (float(result[k]) for k in
                                                   ("main", "draft", "balance", "indexer", "norm"))
            if math.isfinite(main) and math.isfinite(norm):
                trainer.keep()
            else:
                trainer.recover()
                recoveries += 1
                print(f"step {step}: loss {main}, gradient {norm}: back to the last good weights", flush=True)
                if recoveries > 5:
                    raise SystemExit("training diverges")
            now = time.monotonic()
            speed = args.log_every * args.batch * args.length / (now - shown)
            shown = now
            log.append({"step": step, "tokens": tokens, "progress": round(progress, 4), "main": main, "draft": draft})
            print(f"{step:6d} {now - started:6.1f}s p{progress:.3f} x{scale:.2f} main {main:.4f} draft {draft:.4f} "
                  f"bal {balance:.3f} idx {indexer:.3f} |g| {norm:.2f} {speed / 1e3:.0f}k tok/s", flush=True)
            if now - saved > args.save_every:
                saved = now
                trainer.save(args.out, four_bit=False, note={"tokens": tokens, "progress": progress, "log": log})
    feed.close()
    print(f"trained to {time.monotonic() - started:.1f} s, {tokens / 1e6:.1f}M tokens", flush=True)
    on_grid = args.end > args.grid_from
    note = {"tokens": tokens, "progress": args.end, "log": log}
    trainer.save(args.out, four_bit=on_grid, note=note)
    if args.state:
        trainer.save_state(args.state)
    with torch.no_grad():
        weights = trainer.rounded() if on_grid else trainer.weights
    report = evaluate(trainer.plain, weights, exams, device=args.device)
    trainer.save(args.out, four_bit=on_grid, note={**note, **report})
    print(json.dumps(report, indent=1), flush=True)
    for text in sample(trainer.plain, weights, args.data, device=args.device, length=args.sample_tokens):
        print("-----\n" + text, flush=True)
    print(f"done at {time.monotonic() - started:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, required=True, help="wall time until the last step begins")
    parser.add_argument("--begin", type=float, default=0.0)
    parser.add_argument("--end", type=float, default=1.0)
    parser.add_argument("--hold", type=float, default=0.45, help="share of the schedule at the full rate")
    parser.add_argument("--grid-from", type=float, default=0.6, help="progress from which experts train on their grid")
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--state", type=Path, help="optimizer state, read if it exists and written at the end")
    parser.add_argument("--batch", type=int, default=64, help="sequences a step")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--teach-rows", type=int, default=2, help="sequences a step that teach the indexer")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--save-every", type=float, default=180)
    parser.add_argument("--exam-rows", type=int, default=64)
    parser.add_argument("--sample-tokens", type=int, default=160)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    train(parser.parse_args())


if __name__ == "__main__":
    main()

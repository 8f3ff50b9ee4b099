"""What a trained model is worth: held-out losses, draft acceptance, how evenly experts are used, greedy answers.

Runs the uncompiled model in small batches. The same functions serve the trainer and the converter's checks.
"""
from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from tools.tiny import tokenizer as bpe
from tools.tiny.delta import CHUNK
from tools.tiny.model import TinyModel
from tools.tiny.render import render

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather for a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "The city."}}, "required": ["city"]}}}
OPEN_VALVE = {"type": "function", "function": {"name": "open_valve", "description": "Open a valve of the tank.", "parameters": {
    "type": "object", "properties": {"valve_id": {"type": "string"}, "percent": {"type": "integer"}}, "required": ["valve_id", "percent"]}}}
PROMPTS: list[tuple[str, list[dict] | None, bool]] = [
    ("What is 7+5?", None, True), ("What is 7+5?", None, False), ("What is 348 + 275?", None, True),
    ("Tom has 12 apples. He gives 5 to Anna. How many apples are left?", None, True),
    ("What is the weather in Paris?", [WEATHER], True), ("Open valve K12 to 35 percent.", [WEATHER, OPEN_VALVE], True),
    ("Tell me a story about a brave little fox.", None, True),
    ("Continue this story: One day, Lily found a small key in the garden. She", None, True),
    ("What is the capital of France?", None, True), ("What is a bridge?", None, True), ("Hello! How are you?", None, True),
    ("My name is Lena. What is my name?", None, False)]


def prompt_text(ask: str, tools: list[dict] | None, *, think: bool) -> str:
    """A chat prompt up to where the assistant writes."""
    return (render([{"role": "user", "content": ask}], tools) + "<|im_start|>assistant\n<think>\n"
            + ("" if think else "\n</think>\n\n"))


@torch.no_grad()
def evaluate(model: TinyModel, weights: dict[str, torch.Tensor], exams: dict[str, np.ndarray], *, device: str,
             batch: int = 8) -> dict[str, dict]:
    """Per exam: loss of trunk and draft block (nats a token), one-step acceptance; per block: relative load entropy."""
    results, loads = {}, []
    for name, rows in exams.items():
        sums = np.zeros(4)
        for i in range(0, len(rows), batch):
            ids = torch.from_numpy(rows[i:i + batch].astype(np.int64)).to(device)
            now, target = ids[:, :-1], ids[:, 1:]
            r, notes = model.trunk(now, weights)
            d = model.draft(r, now, weights, notes)
            c, head = model.c, model.blocks["head"]
            main = head(r, model.mixer(weights), "output_hc_", weights["output.weight"], c, model.dtype)
            draft = head(d, model.draft_mixer(weights), "nextn.hc_head_", weights["output.weight"], c, model.dtype)
            sums += [float(F.cross_entropy(main.flatten(0, 1), target.flatten())),
                     float(F.cross_entropy(draft[:, :-1].flatten(0, 1), target[:, 1:].flatten())),
                     float((draft[:, :-1].argmax(-1) == main[:, 1:].argmax(-1)).float().mean()),
                     float((main.argmax(-1) == target).float().mean())]
            loads.append(torch.stack(notes["load"]).cpu())
        sums /= math.ceil(len(rows) / batch)
        results[name] = dict(zip(("loss", "draft_loss", "acceptance", "accuracy"), sums.round(4).tolist(), strict=True))
    load = torch.stack(loads).mean(0)
    entropy = -(load * load.clamp(min=1e-9).log()).sum(-1) / math.log(load.shape[-1])
    return {"exams": results, "routing_entropy": [round(float(x), 4) for x in entropy]}


@torch.no_grad()
def greedy(model: TinyModel, weights: dict[str, torch.Tensor], prompts: list[list[int]], *, device: str, length: int,
           window: int = 512) -> list[list[int]]:
    """The most likely continuation of each prompt, by reading everything again for each token."""
    window = -(-max(window, max(map(len, prompts)) + length) // CHUNK) * CHUNK
    ids = torch.zeros(len(prompts), window, dtype=torch.long, device=device)
    ends = torch.tensor([len(p) for p in prompts], device=device)
    for row, p in zip(ids, prompts, strict=True):
        row[:len(p)] = torch.tensor(p, device=device)
    lines = torch.arange(len(prompts), device=device)
    for step in range(length):
        r, _ = model.trunk(ids, weights)
        last = r[lines, ends + step - 1][:, None]
        logits = model.blocks["head"](last, model.mixer(weights), "output_hc_", weights["output.weight"], model.c, model.dtype)
        ids[lines, ends + step] = logits[:, 0].argmax(-1)
    stop = model.c.end_of_turn
    out = [row[e:e + length].tolist() for row, e in zip(ids, ends.tolist(), strict=True)]
    return [o[:o.index(stop)] if stop in o else o for o in out]


def sample(model: TinyModel, weights: dict[str, torch.Tensor], data: Path, *, device: str, length: int) -> list[str]:
    """Greedy answers to PROMPTS, each under its question."""
    tokenizer = bpe.load(data)
    prompts = [tokenizer.encode(prompt_text(ask, tools, think=think)).ids for ask, tools, think in PROMPTS]
    answers = greedy(model, weights, prompts, device=device, length=length)
    return [f"> {ask}{'' if think else ' (no thinking)'}\n{tokenizer.decode(a, skip_special_tokens=False)}"
            for (ask, _, think), a in zip(PROMPTS, answers, strict=True)]

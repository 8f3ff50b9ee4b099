"""Activations rounded to int8 for the prompt's products: records of 256 elements (kernels/prompt_record.cuh), in two kinds,
whose scales stand for 256 or for 32 elements."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.layouts import LAYOUTS
from engine.backend.cuda.memory import Weight
from engine.backend.cuda.products import Source
from engine.backend.cuda.prompt.chunk import Chunk

_RECORD_BYTES = 320
_WARPS = 8


def record_bytes(rows: int, columns: int) -> int:
    """Memory of the records of rows."""
    return rows * -(-columns // 256) * _RECORD_BYTES


@dataclass
class Input:
    """Rows that products read: f32 [tokens * per_token, columns], and their records in each kind that was asked for."""

    columns: int
    per_token: int = 1
    floats: Buffer | None = None
    records: dict[int, Buffer] = field(default_factory=dict)  # by how many elements share a scale


def kinds_of(weights: Iterable[Weight]) -> tuple[set[int], bool]:
    """The kinds of records that these weights multiply with, and whether one of them multiplies with f32."""
    weights = list(weights)
    return ({LAYOUTS[w.format].activation_block for w in weights if not w.is_float}, any(w.is_float for w in weights))


def round_rows(chunk: Chunk, source: Source, weights: Iterable[Weight], *, name: str, floats: bool = False,
               per_token: int = 1) -> tuple[Input, list[Launch]]:
    """The rows of a source, normed if it says so, in every form that the weights ask for (and as f32, if `floats`)."""
    kinds, any_float = kinds_of(weights)
    found = Input(source.columns, per_token)
    launches = []
    plain = source.norm is None and source.stride == source.columns
    normed = None
    if floats or any_float:
        found.floats = source.x if plain else chunk.rows(f"{name}.normed", source.columns, per_token=per_token)
        normed = None if plain else found.floats
    for kind in sorted(kinds) or ([256] if normed is not None else []):
        if kind in kinds:
            found.records[kind] = chunk.scratch(f"{name}.{kind}", record_bytes(chunk.tokens * per_token, source.columns))
        grid = (chunk.tokens * per_token, 1, 1)
        launches.append(Launch("prompt_round", (("BLOCK", str(kind)),), "round_rows", grid, 256, 0, {
            "window": chunk.window, "x": source.x, "norm": source.norm, "eps": source.eps, "columns": source.columns,
            "stride": source.stride, "per_token": per_token, "normed": normed, "records": found.records.get(kind)}))
        normed = None  # once is enough
    return found, launches


@dataclass(frozen=True)
class Biases:
    """Of every expert, added to gate and up before the activation: f32 [experts, columns]; the expert of each row."""

    gate: Buffer
    up: Buffer
    ids: Buffer


def round_hidden(chunk: Chunk, gate: Buffer, up: Buffer, columns: int, weights: Iterable[Weight], *, activation: int, name: str,
                 per_token: int = 1, biases: Biases | None = None) -> tuple[Input, list[Launch]]:
    """activation(gate, up), rows f32 [tokens * per_token, columns], in every form that the weights ask for."""
    kinds, any_float = kinds_of(weights)
    rows = chunk.tokens * per_token
    found = Input(columns, per_token, chunk.rows(f"{name}.floats", columns, per_token=per_token) if any_float else None)
    launches, floats = [], found.floats
    for kind in sorted(kinds) or [256]:
        if kind in kinds:
            found.records[kind] = chunk.scratch(f"{name}.{kind}", record_bytes(rows, columns))
        blocks = -(-rows * -(-columns // 256) // _WARPS)
        launches.append(Launch("prompt_round", (("BLOCK", str(kind)),), "round_hidden", (blocks, 1, 1), 32 * _WARPS, 0, {
            "window": chunk.window, "gate": gate, "up": up, "columns": columns, "per_token": per_token,
            "activation": activation, "gate_bias": biases.gate if biases else None, "up_bias": biases.up if biases else None,
            "ids": biases.ids if biases else None, "hidden": floats, "records": found.records.get(kind)}))
        floats = None
    return found, launches

"""Launches of a prompt's matrix products: those of one format share a launch, three at most. Over all tokens, or over the
tiles of a plan, which the device has made of the tokens' routes."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.layouts import LAYOUTS, Layout
from engine.backend.cuda.memory import Weight
from engine.backend.cuda.prompt.chunk import Chunk
from engine.backend.cuda.prompt.records import Input
from engine.errors import Internal

TILE_TOKENS, _TILE_ROWS = 64, 128  # kernels/prompt_tile.cuh
_STATIC_BYTES = 1024  # more than the kernel's own
_FLOAT_ROWS = 64  # kernels/prompt_floats.cu
_MOST = 3


@dataclass(frozen=True)
class Plan:
    """Routes by expert, cut into tiles: i32 [capacity, 4], their number, and the routes i32 [tokens * used]."""

    tiles: Buffer
    count: Buffer
    pairs: Buffer
    capacity: int
    used: int


@dataclass(frozen=True)
class Matrix:
    """Rows first … of a weight (of each expert's, if there is a plan), and where results go: f32 [tokens * used, rows]. The
    scale beside a weight is in its products."""

    weight: Weight
    out: Buffer
    rows: int
    first: int = 0
    bias: Buffer | None = None

    def factors(self, chunk: Chunk) -> Buffer | None:
        """What results are multiplied with: f32 of all, or of every expert."""
        scale = self.weight.tensor.scale
        return chunk.memory.vector(scale) if scale is not None else None


def products(chunk: Chunk, x: Input, matrices: Sequence[Matrix], *, plan: Plan | None = None, accumulate: bool = False,
             scale: float = 1.0) -> list[Launch]:
    """out = weight · x (+ bias), or out += scale * that."""
    used = plan.used if plan else 1
    shared = {"window": chunk.window, "tiles": plan.tiles if plan else None, "tile_count": plan.count if plan else None,
              "pairs": plan.pairs if plan else None, "columns": x.columns, "input_of": used // x.per_token,
              "accumulate": int(accumulate), "scale": scale}
    tiles = plan.capacity if plan else -(-chunk.tokens // TILE_TOKENS)
    launches = []
    by_format: dict[str, list[Matrix]] = {}
    for matrix in matrices:
        if matrix.weight.columns != x.columns:
            raise Internal(f"{matrix.weight.tensor.name}: has {matrix.weight.columns} columns, its input {x.columns}")
        by_format.setdefault(matrix.weight.format, []).append(matrix)
    for group in by_format.values():
        if group[0].weight.is_float:
            launches += [_float_launch(chunk, matrix, x, shared, tiles) for matrix in group]
            continue
        for first in range(0, len(group), _MOST):
            launches.append(_launch(chunk, group[first:first + _MOST], x, shared, tiles))
    return launches


def _launch(chunk: Chunk, group: Sequence[Matrix], x: Input, shared: dict, tiles: int) -> Launch:
    name = group[0].weight.format
    arguments = {**shared, "records": x.records[LAYOUTS[name].activation_block]}
    for i in range(_MOST):
        m = group[i] if i < len(group) else None
        arguments |= {
            f"weights{i}": m.weight.buffer if m else None, f"expert_bytes{i}": m.weight.matrix_bytes if m else 0,
            f"matrix_rows{i}": m.weight.rows if m else 0, f"first{i}": m.first if m else 0, f"rows{i}": m.rows if m else 0,
            f"out{i}": m.out if m else None, f"bias{i}": m.bias if m else None, f"factors{i}": m.factors(chunk) if m else None}
    blocks, n_bytes = sum(-(-m.rows // _TILE_ROWS) for m in group), stage_bytes(LAYOUTS[name])
    stages = 2 if 2 * n_bytes + _STATIC_BYTES <= chunk.shared_bytes else 1
    return Launch("prompt_matmul", (("FORMAT", name), ("STAGES", str(stages))), "prompt_matmul", (blocks, tiles, 1), _TILE_ROWS,
                  stages * n_bytes, arguments)


def _float_launch(chunk: Chunk, m: Matrix, x: Input, shared: dict, tiles: int) -> Launch:
    grid = (-(-m.rows // _FLOAT_ROWS), tiles, 1)
    return Launch("prompt_floats", (("WEIGHT", m.weight.format),), "prompt_floats", grid, 256, 0, {
        **shared, "x": x.floats, "weights": m.weight.buffer, "matrix_rows": m.weight.rows, "first": m.first, "rows": m.rows,
        "out": m.out, "bias": m.bias, "factors": m.factors(chunk)})


def stage_bytes(layout: Layout) -> int:
    """Shared memory of 256 columns of a tile: what WeightTile::BYTES and TOKEN_BYTES add up to."""
    narrow = layout.activation_block == 32
    row = 4 * layout.main + 16 + (4 * layout.second + 16 if layout.second else 0)
    if narrow:
        steps = 16 if layout.scale_unit == 64 else 8
        row += 4 * steps * (2 if layout.weighted else 1)
    else:
        minimums = layout.scales == 16 and layout.floats != 2
        groups = 0 if layout.scales == 0 else 8 if layout.floats == 0 or layout.scales == 8 else 16
        row += groups + (48 + 4 if minimums else 0) + 4
    return _TILE_ROWS * row + TILE_TOKENS * (256 + 80)

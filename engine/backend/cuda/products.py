"""Launches of matrix products with a window's tokens, chosen by the weights' formats."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.layouts import LAYOUTS, chunks_of, held
from engine.backend.cuda.memory import Weight

_THREADS, _WARPS = 256, 8
# blocks that a multiprocessor holds, by tokens: decoding wants as much memory under way as there can be
_BLOCKS_AT_ONCE = MappingProxyType({1: 3, 2: 2, 4: 1, 8: 1})
WINDOWS = (1, 2, 4, 8)  # tokens that a window's kernels are made for


@dataclass(frozen=True)
class Source:
    """Rows f32 [T, stride] that a product reads, through a norm where there is one."""

    x: Buffer
    columns: int
    stride: int
    norm: Buffer | None = None
    eps: float = 0.0


@dataclass(frozen=True)
class Product:
    """One matrix and where its result goes: f32 [T, rows]."""

    weight: Weight
    out: Buffer
    bias: Buffer | None = None


def products(window: Buffer, source: Source, wanted: Sequence[Product], tokens: int, *, multiprocessors: int,
             accumulate: bool = False, scale: float = 1.0, soft_cap: float = 0.0, best: Buffer | None = None,
             only_wanted: bool = False) -> list[Launch]:
    """Products of the same rows: those of one format in one launch. accumulate: out += scale * result; best: where the
    greatest results go, for logits."""
    launches = []
    common = {"window": window, "x": source.x, "norm": source.norm, "eps": source.eps, "columns": source.columns,
              "x_stride": source.stride, "wanted": int(only_wanted), "accumulate": int(accumulate), "scale": scale,
              "soft_cap": soft_cap, "best": best}
    quantized: dict[str, list[Product]] = {}
    for product in wanted:
        if product.weight.is_float:
            blocks = min(-(-product.weight.rows // _WARPS), 4 * multiprocessors)
            launches.append(Launch(
                "floats", (("WEIGHT", product.weight.format),), "float_matvec", (blocks, tokens, 1), _THREADS,
                4 * source.columns, {**common, "weights": product.weight.buffer, "rows": product.weight.rows,
                                     "bias": product.bias, "out": product.out}))
        else:
            quantized.setdefault(product.weight.format, []).append(product)
    for name, group in quantized.items():
        for first in range(0, len(group), 3):
            launches.append(_matvec(name, group[first:first + 3], common, tokens, multiprocessors))
    return launches


def _matvec(name: str, group: Sequence[Product], common: dict, tokens: int, multiprocessors: int) -> Launch:
    columns = group[0].weight.columns
    rows, depth = rows_and_depth(columns)
    arguments = {name: value for name, value in common.items() if name != "columns"}
    warps = 0
    for i in range(3):
        product = group[i] if i < len(group) else None
        arguments |= {f"weights{i}": product.weight.buffer if product else 0, f"rows{i}": product.weight.rows if product else 0,
                      f"out{i}": product.out if product else 0, f"bias{i}": product.bias if product else None}
        warps += -(-product.weight.rows // rows) if product else 0
    blocks, at_once = -(-warps // _WARPS), _BLOCKS_AT_ONCE[tokens]
    once = blocks <= at_once * multiprocessors
    resident = at_once * multiprocessors
    defines = (("FORMAT", name), ("ROWS", str(rows)), ("DEPTH", str(depth)), ("HELD", str(held(columns))),
               ("ONCE", str(int(once))), ("MIN_BLOCKS", str(at_once)),
               ("TOKENS", str(tokens)), ("SEGMENTS", str(len(group))), ("COLUMNS", str(columns)))
    return Launch("matvec", defines, "matvec", (min(blocks, resident), 1, 1), _THREADS,
                  tokens * LAYOUTS[name].rounded_bytes(columns), arguments)


def rows_and_depth(columns: int) -> tuple[int, int]:
    """Rows a warp takes at once, and how many times 32 chunks of each it loads ahead: about as many bytes either way."""
    return (2, 1) if chunks_of(columns) <= 32 else (1, 2)

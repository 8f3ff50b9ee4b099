"""Launches of matrix products with a window's tokens: all products of the same rows in one, whatever their formats."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.layouts import LAYOUTS, chunks_of, held
from engine.backend.cuda.memory import Weight

_THREADS, _WARPS = 256, 8
_MOST_MATRICES, _MOST_FORMATS = 6, 4  # of a launch, as in kernels/matvec.cu
_LONG_COLUMNS = 4096  # from which on a block takes one row of floats, as there
# blocks that a multiprocessor holds, by tokens: decoding wants as much memory under way as there can be
_BLOCKS_AT_ONCE = MappingProxyType({1: 3, 2: 2, 4: 1, 8: 1})
WINDOWS = (1, 2, 4, 8)  # tokens that a window's kernels are made for


@dataclass(frozen=True)
class Source:
    """Rows f32 [T, stride] that a product reads, through a norm where there is one: of each of `parts` equal parts of a row.
    factors f32 [T, parts]: where the product leaves what the norm multiplied with, for who reads the rows later."""

    x: Buffer
    columns: int
    stride: int
    norm: Buffer | None = None
    eps: float = 0.0
    parts: int = 1
    factors: Buffer | None = None


@dataclass(frozen=True)
class Product:
    """One matrix and where its result goes: f32 [T, rows]."""

    weight: Weight
    out: Buffer
    bias: Buffer | None = None


@dataclass(frozen=True)
class Streams:
    """Residual streams f32 [T, count, width] that a result is added to, each by its weight of inject f32 [T, count]."""

    x: Buffer
    inject: Buffer
    count: int


def products(window: Buffer, source: Source, wanted: Sequence[Product], tokens: int, *, multiprocessors: int,
             accumulate: bool = False, scale: float = 1.0, soft_cap: float = 0.0, best: Buffer | None = None,
             only_wanted: bool = False, streams: Streams | None = None) -> list[Launch]:
    """Products of the same rows. accumulate: out += scale * result; best: where the greatest results go, for logits;
    streams: where a single product goes instead of `out`."""
    common = {"window": window, "x": source.x, "norm": source.norm, "eps": source.eps, "factors": source.factors,
              "x_stride": source.stride, "wanted": int(only_wanted), "accumulate": int(accumulate), "scale": scale,
              "soft_cap": soft_cap, "inject": streams.inject if streams else None, "streams": streams.count if streams else 0,
              "best": best}
    return [_matvec(groups, source, common, tokens, multiprocessors, streams.x if streams else None)
            for groups in _launches(wanted)]


def _launches(wanted: Sequence[Product]) -> list[dict[str, list[Product]]]:
    """By launch and format; plain floats first, since their rows take longest."""
    launches: list[dict[str, list[Product]]] = []
    ordered = sorted(wanted, key=lambda product: (not product.weight.is_float, product.weight.format))
    for product in ordered:
        last, name = launches[-1] if launches else {}, product.weight.format
        full = sum(map(len, last.values())) == _MOST_MATRICES or (name not in last and len(last) == _MOST_FORMATS)
        if not last or full:
            launches.append({})
        launches[-1].setdefault(name, []).append(product)
    return launches


def _matvec(groups: dict[str, list[Product]], source: Source, common: dict, tokens: int, multiprocessors: int,
            out: Buffer | None) -> Launch:
    columns = source.columns
    rows, depth = rows_and_depth(columns)
    arguments = {**common, **dict.fromkeys((f"blocks{i}" for i in range(_MOST_FORMATS)), 0)}
    flat = [product for group in groups.values() for product in group]
    for i in range(_MOST_MATRICES):
        product = flat[i] if i < len(flat) else None
        arguments |= {f"weights{i}": product.weight.buffer if product else 0, f"rows{i}": product.weight.rows if product else 0,
                      f"out{i}": (out or product.out) if product else 0, f"bias{i}": product.bias if product else None}
    blocks, once = _blocks(groups, columns, tokens, multiprocessors)
    defines, end, shared_bytes = [("FORMATS", str(len(groups)))], 0, 0
    for i, (name, group) in enumerate(groups.items()):
        end += len(group)
        defines += [(f"FORMAT{i}", name), (f"END{i}", str(end))]
        arguments[f"blocks{i}"] = blocks[i]
        rounded = 4 * columns if group[0].weight.is_float else tokens * LAYOUTS[name].rounded_bytes(columns)
        shared_bytes = max(shared_bytes, rounded)
    defines += [("ROWS", str(rows)), ("DEPTH", str(depth)), ("HELD", str(held(columns))), ("ONCE", str(int(once))),
                ("MIN_BLOCKS", str(_BLOCKS_AT_ONCE[tokens])), ("TOKENS", str(tokens)), ("COLUMNS", str(columns)),
                ("PARTS", str(source.parts))]
    return Launch("matvec", tuple(defines), "matvec", (sum(blocks), 1, 1), _THREADS, shared_bytes, arguments)


def _blocks(groups: dict[str, list[Product]], columns: int, tokens: int, multiprocessors: int) -> tuple[list[int], bool]:
    """Blocks for each format, and whether every warp then has one group of rows at most. What does not fit on the card at once
    is shared out by bytes."""
    at_a_time, _ = rows_and_depth(columns)
    floats, wanted, n_bytes = [], [], []
    for group in groups.values():
        if group[0].weight.is_float:
            rows = -(-sum(product.weight.rows for product in group) // (1 if columns >= _LONG_COLUMNS else _WARPS))
            floats.append(tokens * min(rows, 4 * multiprocessors))
        else:
            wanted.append(-(-sum(-(-product.weight.rows // at_a_time) for product in group) // _WARPS))
            n_bytes.append(sum(product.weight.matrix_bytes for product in group))
    resident = _BLOCKS_AT_ONCE[tokens] * multiprocessors
    resident = max(resident - sum(floats), resident // 2, 1)
    if sum(wanted) <= resident:
        return floats + wanted, True
    return floats + [min(blocks, max(1, resident * part // sum(n_bytes)))
                     for blocks, part in zip(wanted, n_bytes, strict=True)], False


def rows_and_depth(columns: int) -> tuple[int, int]:
    """Rows a warp takes at once, and how many times 32 chunks of each it loads ahead: about as many bytes either way."""
    return (2, 1) if chunks_of(columns) <= 32 else (1, 2)

"""Random weights in any block format, exact float64 views of them, and small programs of one matrix product.

As a script it prints a digest of a format's results, for comparing instruction sets: products.py FORMAT …
"""

import hashlib
import sys

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType

from engine.backend.cpu import isa

isa.prepare_numba()  # before numba is imported
from engine.backend.cpu import unpack  # noqa: E402
from engine.backend.cpu.backend import CpuBackend  # noqa: E402
from engine.backend.cpu.program import allocate  # noqa: E402
from engine.gguf import FORMATS, Tensor  # noqa: E402

FLOATS = ("F32", "F16", "BF16")
NAMES = (*FLOATS, *unpack.FORMATS)
# where the f16 values of a block stand that are not at 0: d, and the minimum if there is one
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,),
          "TQ1_0": (52,), "TQ2_0": (64,), "MXFP4": (), "NVFP4": (), "IQ1_M": ()}
TOKENS, ROWS = 13, 37  # a tile of four tokens and one of sixteen rows stay unfinished


def columns_of(name: str) -> int:
    """A row length that is no multiple of the kernels' own steps, where the format allows one."""
    return {1: 151, 32: 352, 64: 320, 256: 768}[FORMATS[name].block_elements]


def random_weight(name: str, *shape: int, seed: int = 0) -> Tensor:
    """Random bytes as blocks; their floats are of every kind: zero, negative, subnormal, the largest, and ordinary ones."""
    rng, form = np.random.default_rng(seed), FORMATS[name]
    n_rows, columns = int(np.prod(shape[:-1])), shape[-1]
    if name in FLOATS:
        values = rng.standard_normal((n_rows, columns)).astype(np.float32)
        values[rng.random(values.shape) < 0.05] = 0
        if name == "F16":
            values *= 2.0 ** rng.integers(-24, 14, values.shape)
        data = _as_bytes(values, name)
    else:
        data = rng.integers(0, 256, (n_rows, columns // form.block_elements, form.block_bytes), np.uint8)
        same = rng.random(data.shape[:2]) < 0.1  # some blocks of only the smallest codes and scales, or the largest
        data[same] = rng.choice(np.array([0, 255], np.uint8), (same.sum(), 1))
        for at in HALVES.get(name, (0,)):
            data[..., at:at + 2] = _odd_halves(rng, data.shape[:2]).view(np.uint8).reshape(*data.shape[:2], 2)
        if name == "IQ1_M":  # its f16 is spread over the highest nibbles of four words
            bits = _odd_halves(rng, data.shape[:2]).view(np.uint16)
            for k in range(4):
                data[..., 49 + 2 * k] = data[..., 49 + 2 * k] & 15 | (bits >> 4 * k & 15) << 4
        if name == "MXFP4":  # exponents; the largest would not leave room for a sum in f32
            odd, ordinary = rng.choice([0, 1, 2, 200], data.shape[:2]), rng.integers(110, 135, data.shape[:2])
            data[..., 0] = np.where(rng.random(data.shape[:2]) < 0.2, odd, ordinary)
        data = data.reshape(n_rows, -1)
    aligned = allocate(data.shape, np.uint8)  # with room behind it, as a mapped file has
    aligned[:] = data
    aligned = aligned.reshape(*shape[:-1], -1)
    return Tensor(name=f"{name}.weight", shape=shape, format=form, n_bytes=aligned.nbytes, shard=0, offset=0, data=aligned)


def _as_bytes(values: np.ndarray, name: str) -> np.ndarray:
    if name == "F32":
        return values.view(np.uint8)
    if name == "F16":
        return values.astype(np.float16).view(np.uint8)
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def _odd_halves(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """f16 values, finite."""
    ordinary = np.ldexp(rng.uniform(1, 2, shape), rng.integers(-12, 2, shape)).astype(np.float16)
    subnormal = rng.integers(1, 1024, shape).astype(np.uint16).view(np.float16)
    largest = np.full(shape, 65504, np.float16)
    kind = rng.integers(0, 12, shape)
    values = np.select([kind == 0, kind == 1, kind == 2], [np.zeros(shape, np.float16), subnormal, largest], ordinary)
    return np.ascontiguousarray(np.where(rng.random(shape) < 0.4, -values, values).astype("<f2"))


def dequantize(tensor: Tensor) -> np.ndarray:
    """f32 of the tensor's shape, by the gguf package (Q2_0, which it lacks, by the definition)."""
    if tensor.format.name == "Q2_0":
        return _dequantize_q2_0(tensor.data).reshape(tensor.shape)
    with np.errstate(invalid="ignore"):
        values = gguf.quants.dequantize(tensor.data, GGMLQuantizationType(tensor.format.id))
    return values.reshape(tensor.shape).astype(np.float32, copy=False)


def _dequantize_q2_0(data: np.ndarray) -> np.ndarray:
    blocks = data.reshape(-1, 18)
    d = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)  # [n, 1]
    codes = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3  # [n, 16, 4]
    return d * (codes.reshape(-1, 64).astype(np.float32) - 1)


def exact_parts(tensor: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Float64 [rows, columns] pair whose sum is the weight: the part with d, and the part with the minimum."""
    name = tensor.format.name
    if not HALVES.get(name, (0,)) or name in FLOATS:  # a power of two, or so few digits that f32 holds the product
        whole = dequantize(tensor).astype(np.float64)
        return whole, np.zeros_like(whole)
    offsets, form = HALVES.get(name, (0,)), tensor.format
    blocks = tensor.data.reshape(-1, form.block_bytes)
    parts = []
    for chosen in range(2):
        if chosen == len(offsets):
            parts.append(np.zeros(tensor.shape))
            continue
        units = blocks.copy()  # with that float 1 and the other 0, what is left are integers
        for i, at in enumerate(offsets):
            units[:, at:at + 2] = np.array([float(i == chosen)], "<f2").view(np.uint8)
        integers = dequantize(Tensor(tensor.name, tensor.shape, form, 0, 0, 0, units)).astype(np.float64)
        at = offsets[chosen]
        value = np.ascontiguousarray(blocks[:, at:at + 2]).view("<f2").astype(np.float64)  # [blocks, 1]
        parts.append((integers.reshape(len(blocks), -1) * value).reshape(tensor.shape))
    return parts[0], parts[1]


def random_inputs(columns: int, *, rows: int = TOKENS, seed: int = 1) -> np.ndarray:
    """f32 [rows, columns]: ordinary, tiny and large values, zeros, blocks of zeros, ties of the rounding, extremes."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    x *= np.repeat(10.0 ** rng.integers(-8, 4, (rows, -(-columns // 32))), 32, axis=1)[:, :columns].astype(np.float32)
    x[0] = rng.standard_normal(columns)
    x[1, :256] = 0
    x[2, ::3] = -0.0
    x[3] = (rng.integers(-254, 255, columns) / 2).astype(np.float32)
    x[3, ::32] = 127  # a scale of 1: every odd half is a tie
    x[4, 5] = x[4].min() - 1
    x[4, 40] = -x[4, 5]
    x[5] = 3
    x[6] = -np.sign(x[6])
    return x


class Product:
    """A recorded program of one product; `many` makes the inputs one row a route, as for the second matrix of an expert."""

    def __init__(self, weight: Tensor, *, used: int = 0, many: bool = False, workers: int = 2, **options) -> None:
        self.backend = CpuBackend(workers=workers, max_context=64, max_rows=TOKENS)
        self.used, self.columns, self.options = used, weight.shape[-1], options
        self.x = self.backend.rows("x", self.columns, per_token=used if many else 1)
        self.out = self.backend.rows("out", weight.shape[-2], per_token=used or 1)
        plan = None
        if used:
            self.groups = self.backend.program.memory((1 + 3 * weight.shape[0],), np.int64)
            self.pairs = self.backend.program.memory((TOKENS * used,), np.int32)
            plan = (self.groups.ctypes.data, self.pairs.ctypes.data)
        self.backend.linear(self.x, weight, self.out, groups=plan, **options)
        self.backend.program.seal()

    def run(self, x: np.ndarray, *, routes: np.ndarray | None = None) -> np.ndarray:
        """x f32 [T (* used), columns] -> f32 [T (* used), rows]; routes int [T, used] are expert ids."""
        n = len(x) // self.x.per_token
        self.x.array[:len(x)] = x
        if routes is not None:
            order = np.argsort(routes.reshape(-1), kind="stable").astype(np.int32)
            experts, first, counts = np.unique(routes.reshape(-1)[order], return_index=True, return_counts=True)
            self.pairs[:len(order)] = order
            self.groups[0] = len(experts)
            self.groups[1:1 + 3 * len(experts)] = np.stack([experts, first, counts], axis=1).reshape(-1)
        self.out.array[:] = np.nan
        self.backend.program.run(rows=n, position=0, out_first=0, out_rows=0)
        return self.out.array[:n * self.out.per_token].copy()

    def close(self) -> None:
        self.backend.close()

    def __enter__(self) -> "Product":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def digest(name: str) -> str:
    """A digest of a format's products, dense and grouped, for every kind of window, and of its rows as an embedding."""
    columns, total = columns_of(name), hashlib.sha256()
    x = random_inputs(columns)
    with Product(random_weight(name, ROWS, columns)) as product:
        for n in (1, 3, TOKENS):
            total.update(product.run(x[:n]).tobytes())
    with Product(random_weight(name, 3, ROWS, columns), used=2) as product:
        first = np.random.default_rng(3).integers(0, 3, TOKENS)
        total.update(product.run(x, routes=np.stack([first, (first + 1) % 3], axis=1)).tobytes())
    total.update(embedded(random_weight(name, TOKENS, columns)).tobytes())
    return total.hexdigest()


def embedded(table: Tensor) -> np.ndarray:
    """All rows of a table f32 [rows, columns] through the embedding kernel, two copies beside each other."""
    backend = CpuBackend(workers=2, max_context=64, max_rows=TOKENS)
    try:
        out = backend.embed(table, copies=2)
        backend.program.seal()
        rows = []
        for first in range(0, table.shape[0], TOKENS):
            ids = np.arange(first, min(first + TOKENS, table.shape[0]), dtype=np.int32)
            backend.tokens[:len(ids)] = ids
            backend.program.run(rows=len(ids), position=0, out_first=0, out_rows=0)
            rows.append(out.array[:len(ids)].copy())
        both = np.concatenate(rows)
    finally:
        backend.close()
    if not np.array_equal(both[:, :table.shape[1]].view(np.int32), both[:, table.shape[1]:].view(np.int32)):
        raise AssertionError("the copies of an embedding differ")
    return both[:, :table.shape[1]]


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(argument, digest(argument), flush=True)

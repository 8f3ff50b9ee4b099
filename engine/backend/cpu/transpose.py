"""Turning stored matrices the other way round, once, when a model is loaded."""

from collections.abc import Callable
from functools import cache

import numpy as np

from engine.backend.cpu import rows, simd
from engine.backend.cpu.kernel import slot, specialise, take
from engine.backend.cpu.pool import Pool
from engine.backend.cpu.program import Program
from engine.errors import Internal
from engine.gguf import Tensor

WEIGHTS, HEADS, TAKEN, HEAD_BYTES, ROW_BYTES, COLUMNS, OUT, SCRATCH, SCRATCH_BYTES = range(9)
_SCRATCH_HEAD = 1024  # bytes for `expand_row`; the row follows
expand_row = None  # given by `specialise`


def transpose_rows(arguments, window, counter, worker):
    """out[head, column, i] = row i of that head, column: f32 [heads, columns, taken]."""
    taken, columns = slot(arguments, TAKEN), slot(arguments, COLUMNS)
    scratch = slot(arguments, SCRATCH) + worker * slot(arguments, SCRATCH_BYTES)
    row = scratch + _SCRATCH_HEAD
    while True:
        item = take(counter)
        if item >= slot(arguments, HEADS) * taken:
            return
        head, i = item // taken, item % taken
        expand_row(slot(arguments, WEIGHTS) + head * slot(arguments, HEAD_BYTES) + i * slot(arguments, ROW_BYTES),
                   row, columns, scratch)
        out = slot(arguments, OUT) + 4 * (head * columns * taken + i)
        for c in range(columns):
            simd.store_f32(out + 4 * c * taken, simd.load_f32(row + 4 * c))


@cache
def _transpose_function(name: str) -> Callable:
    return specialise(transpose_rows, name, expand_row=rows.expand_function(name))


def transpose_heads(pool: Pool, weight: Tensor, out: np.ndarray) -> None:
    """The first rows of every head of weight [heads, rows, columns] as the columns of out [heads, columns, taken]."""
    heads, columns, taken = out.shape
    program = Program(pool, 1)
    turned = out if out.dtype == np.float32 else program.memory(out.shape)
    scratch, piece = program.worker_scratch("row", _SCRATCH_HEAD + 4 * (columns + 16))
    program.add(_transpose_function(weight.format.name), {
        WEIGHTS: program.keep(weight.data), HEADS: heads, TAKEN: taken, HEAD_BYTES: weight.data[0].nbytes,
        ROW_BYTES: weight.data.shape[-1], COLUMNS: columns, OUT: turned.ctypes.data, SCRATCH: scratch, SCRATCH_BYTES: piece})
    program.seal()
    if not program.run(rows=1, position=0, out_first=0, out_rows=0):
        raise Internal(f"{weight.name}: the split was cancelled")
    if turned is not out:
        out[...] = turned

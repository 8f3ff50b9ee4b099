"""Heads of a projection: norm, rotation, and the way into a cache. Used by attention and by the index that it may have."""

from engine.backend import base
from engine.backend.cpu import rows
from engine.backend.cpu.program import float_bits
from engine.errors import BadModel


def place_heads(b, x, heads: int, dim: int, *, stride: int | None = None, norm=None, eps: float = 0.0,
                bare_norm: bool = False, rope: base.Rope | None = None, cache=None, barrier: bool = True) -> None:
    """Norm (by a weight, or bare) and rotate the heads of x in place, or into a cache f32 [heads, context, dim]."""
    if norm is not None and norm.shape != (dim,):
        raise BadModel(f"{norm.name}: its shape is {norm.shape}, expected {(dim,)}")
    stride = 4 * (stride or dim)
    out = {rows.HEADS_OUT: x.address, rows.HEADS_OUT_TOKEN: 4 * x.width, rows.HEADS_OUT_HEAD: stride, rows.HEADS_ABSOLUTE: 0}
    if cache is not None:
        out = {rows.HEADS_OUT: cache.ctypes.data, rows.HEADS_OUT_TOKEN: 4 * dim, rows.HEADS_OUT_HEAD: cache[0].nbytes,
               rows.HEADS_ABSOLUTE: 1}
    b.program.add(rows.place_heads, {
        rows.HEADS_IN: x.address, rows.HEADS_IN_TOKEN: 4 * x.width, rows.HEADS_IN_HEAD: stride,
        rows.HEADS: heads, rows.HEAD_DIM: dim, rows.HEADS_NORM: b.vector(norm) if norm is not None else 0,
        rows.HEADS_NORMED: int(bare_norm or norm is not None),
        rows.HEADS_EPS: float_bits(eps), rows.HEADS_ROPE: b.rope_table(rope) if rope else 0,
        rows.HEADS_ROTARY: rope.dims if rope else 0, rows.HEADS_ADJACENT: int(rope.adjacent) if rope else 0,
        **out}, barrier=barrier)
    b.written(x)

"""Heads of a projection: norm, rotation, and the way into a cache. Used by attention and by the index that it may have."""

from dataclasses import dataclass, replace

from engine.backend import base
from engine.backend.cpu import rows
from engine.backend.cpu.program import float_bits
from engine.errors import BadModel


@dataclass(frozen=True)
class HeadsAt:
    """Where heads of f32 lie: the first one, and how many bytes it is from token to token and from head to head."""

    address: int
    token_bytes: int
    head_bytes: int
    by_position: bool = False  # tokens are counted from the sequence's first, not from the window's

    def skip(self, elements: int) -> "HeadsAt":
        """The same heads without their first elements."""
        return replace(self, address=self.address + 4 * elements)


def place_heads(b, x, heads: int, dim: int, *, stride: int | None = None, norm=None, eps: float = 0.0,
                bare_norm: bool = False, rope: base.Rope | None = None, cache=None, barrier: bool = True) -> None:
    """Norm (by a weight, or bare) and rotate the heads of x in place, or into a cache f32 [heads, context, dim]."""
    source = target = HeadsAt(x.address, 4 * x.width, 4 * (stride or dim))
    if cache is not None:
        target = HeadsAt(cache.ctypes.data, 4 * dim, cache[0].nbytes, by_position=True)
    move_heads(b, source, target, heads, dim, norm=norm, eps=eps, bare_norm=bare_norm, rope=rope, barrier=barrier)
    b.written(x)


def move_heads(b, source: HeadsAt, target: HeadsAt, heads: int, dim: int, *, norm=None, eps: float = 0.0,
               bare_norm: bool = False, rope: base.Rope | None = None, barrier: bool = True) -> None:
    """Norm and rotate heads of `dim` elements on their way from one place to another."""
    if norm is not None and norm.shape != (dim,):
        raise BadModel(f"{norm.name}: its shape is {norm.shape}, expected {(dim,)}")
    b.program.add(rows.place_heads, {
        rows.HEADS_IN: source.address, rows.HEADS_IN_TOKEN: source.token_bytes, rows.HEADS_IN_HEAD: source.head_bytes,
        rows.HEADS: heads, rows.HEAD_DIM: dim, rows.HEADS_NORM: b.vector(norm) if norm is not None else 0,
        rows.HEADS_NORMED: int(bare_norm or norm is not None),
        rows.HEADS_EPS: float_bits(eps), rows.HEADS_ROPE: b.rope_table(rope) if rope else 0,
        rows.HEADS_ROTARY: rope.dims if rope else 0, rows.HEADS_ADJACENT: int(rope.adjacent) if rope else 0,
        rows.HEADS_OUT: target.address, rows.HEADS_OUT_TOKEN: target.token_bytes, rows.HEADS_OUT_HEAD: target.head_bytes,
        rows.HEADS_ABSOLUTE: int(target.by_position)}, barrier=barrier)

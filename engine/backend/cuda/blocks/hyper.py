"""Hyper-connections: a block reads a mixture of the residual streams, and its output is added to each by a weight."""

from dataclasses import dataclass

from engine.backend import base
from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.layouts import LAYOUTS, chunks_of, held
from engine.backend.cuda.memory import Weight
from engine.backend.cuda.products import Product, Source, products
from engine.backend.cuda.rows import Rows
from engine.errors import BadModel

_WARPS = 8  # of a block in kernels/mix.cu: columns that it makes


@dataclass
class HyperRead:
    """See `base.HyperConnection`. Two launches: the products of the normed streams, and what mixes the streams by them."""

    b: object
    spec: base.HyperConnection
    streams: Buffer
    width: int  # of all streams
    norm: Buffer
    factors: Buffer  # f32 [T, streams]: of the norms
    down: Product
    inject: Product | None
    up: Weight
    out: Buffer

    def window(self, tokens: int) -> list[Launch]:
        """Launches for windows of up to `tokens`."""
        b, n, wide = self.b, self.spec.streams, self.width
        source = Source(self.streams, wide, wide, self.norm, self.spec.eps, parts=n, factors=self.factors)
        first = [product for product in (self.down, self.inject) if product is not None]
        return [*products(b.window, source, first, tokens, multiprocessors=b.multiprocessors), self._mix(tokens)]

    def _mix(self, tokens: int) -> Launch:
        rank, n, columns = self.up.columns, self.spec.streams, self.width // self.spec.streams
        if self.up.is_float:
            shared_bytes = 4 * tokens * rank
        else:
            layout = LAYOUTS[self.up.format]
            terms = int(chunks_of(rank) * layout.terms_a_chunk)  # of a row
            shared_bytes = tokens * (layout.rounded_bytes(rank) + 4 * _WARPS * n * terms)
        sizes = {"RANK": rank, "COLUMNS": columns, "STREAMS": n, "TOKENS": tokens, "HELD": held(rank)}
        return Launch(
            "mix", (("FORMAT", self.up.format), *((name, str(size)) for name, size in sizes.items())), "mix",
            (-(-columns // _WARPS), 1, 1), 32 * _WARPS, shared_bytes, {
                "window": self.b.window, "low": self.down.out, "weights": self.up.buffer, "x": self.streams, "norm": self.norm,
                "factors": self.factors, "inject": self.inject.out if self.inject else None, "out": self.out})


@dataclass
class HyperWrite:
    """x += inject * y for every stream."""

    b: object
    streams: Buffer
    y: Buffer
    inject: Buffer
    width: int  # of one stream
    count: int

    def window(self, tokens: int) -> list[Launch]:
        """Launches for windows of up to `tokens`."""
        return [Launch("flash", (), "write_streams", (-(-self.width // 256), tokens, 1), 256, 0, {
            "window": self.b.window, "y": self.y, "inject": self.inject, "columns": self.width, "streams": self.count,
            "x": self.streams})]


def read(b, streams: Rows, spec: base.HyperConnection, w: base.Weights) -> tuple[Rows, Rows | None]:
    """streams f32 [T, streams * D] -> (the block's input f32 [T, D], write weights f32 [T, streams] or None)."""
    wide, n = streams.width, spec.streams
    if wide % (8 * n):
        raise BadModel(f"{w['norm'].name}: {n} streams of {wide // n} values, CUDA has multiples of 8")
    out = b.new_rows("hyper_mixed", wide // n)
    inject = b.new_rows("hyper_inject", n) if "inject" in w else None
    b.record(HyperRead(
        b, spec, streams.buffer, wide, b.memory.vector(w["norm"]), b.scratch_rows("hyper_factors", n),
        Product(b.weight(w["down"]), b.scratch_rows("hyper_low", w["down"].shape[0])),
        Product(b.weight(w["inject"]), inject.buffer) if inject else None, b.weight(w["up"]), out.buffer))
    return out, inject


def write(b, streams: Rows, y: Rows, inject: Rows) -> Rows:
    """Add y f32 [T, D] to every stream, times that stream's weight, in place."""
    b.record(HyperWrite(b, streams.buffer, b.computed(y), inject.buffer, y.width, inject.width))
    streams.writes[0] += 1
    return streams

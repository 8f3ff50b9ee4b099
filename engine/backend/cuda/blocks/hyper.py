"""Hyper-connections: a block reads a mixture of the residual streams, and its output is added to each by a weight."""

from dataclasses import dataclass

from engine.backend import base
from engine.backend.cuda.blocks.plain import norm_launch
from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.products import Product, Source, products
from engine.backend.cuda.rows import Rows


@dataclass
class HyperRead:
    """See `base.HyperConnection`."""

    b: object
    spec: base.HyperConnection
    streams: Buffer
    width: int  # of all streams
    norm: Buffer
    normed: Buffer
    down: Product
    inject: Product | None
    up: Product
    out: Buffer

    def window(self, tokens: int) -> list[Launch]:
        """Launches for windows of up to `tokens`."""
        b, n, wide = self.b, self.spec.streams, self.width
        rank, columns = self.down.weight.rows, self.width // n
        first = [product for product in (self.down, self.inject) if product is not None]
        return [
            norm_launch(b.window, self.streams, wide, self.norm, self.spec.eps, self.normed, tokens, parts=n),
            *products(b.window, Source(self.normed, wide, wide), first, tokens, multiprocessors=b.multiprocessors),
            Launch("flash", (), "low_rank", (-(-rank // 128), tokens, 1), 128, 0, {
                "window": b.window, "x": self.down.out, "columns": rank, "streams": n}),
            *products(b.window, Source(self.down.out, rank, rank), [self.up], tokens, multiprocessors=b.multiprocessors),
            Launch("flash", (), "mix_streams", (-(-columns // 256), tokens, 1), 256, 0, {
                "window": b.window, "gate": self.up.out, "normed": self.normed,
                "inject": self.inject.out if self.inject else None, "columns": columns, "streams": n, "out": self.out})]


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
    wide, rank = streams.width, w["down"].shape[0]
    out = b.new_rows("hyper_mixed", wide // spec.streams)
    inject = b.new_rows("hyper_inject", spec.streams) if "inject" in w else None
    b.record(HyperRead(
        b, spec, streams.buffer, wide, b.memory.vector(w["norm"]), b.scratch_rows("hyper_normed", wide),
        Product(b.weight(w["down"]), b.scratch_rows("hyper_low", rank)),
        Product(b.weight(w["inject"]), inject.buffer) if inject else None,
        Product(b.weight(w["up"]), b.scratch_rows("hyper_gate", wide)), out.buffer))
    return out, inject


def write(b, streams: Rows, y: Rows, inject: Rows) -> Rows:
    """Add y f32 [T, D] to every stream, times that stream's weight, in place."""
    b.record(HyperWrite(b, streams.buffer, b.computed(y), inject.buffer, y.width, inject.width))
    streams.writes[0] += 1
    return streams

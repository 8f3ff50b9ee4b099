"""N-gram embeddings: rows of a hashed table for the last tokens, gated and convolved into every residual stream.

The table lies on the card.
"""

from dataclasses import dataclass

import numpy as np

from engine.backend import base
from engine.backend.cuda.blocks.delta_net import by_tap, convolution_launch
from engine.backend.cuda.blocks.plain import EmbedBlock
from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.products import Product, Source, products
from engine.backend.cuda.rows import Rows


@dataclass
class NgramBlock:
    """See `base.NgramTable`. State: normed values f32 [(taps - 1) * dilation, streams * D], oldest first."""

    b: object
    spec: base.NgramTable
    streams: Buffer
    width: int  # of one stream
    constants: dict[str, Buffer]
    gather: EmbedBlock
    key: Product
    value: Product
    norms: dict[str, Buffer]
    normed: Buffer
    conv_weights: Buffer
    history: Buffer

    def window(self, tokens: int) -> list[Launch]:
        """Launches for windows of up to `tokens`."""
        b, s, heads = self.b, self.spec, len(self.spec.head_sizes)
        gathered = heads * s.row_width
        return [
            Launch("flash", (), "ngram_rows", (-(-tokens * heads // 128), 1, 1), 128, 0, {
                "window": b.window, "history": b.history, **self.constants, "heads": heads, "per_ngram": s.heads_per_ngram,
                "reset_token": s.reset_token, "rows": self.gather.indices}),
            *self.gather.window(tokens),
            *products(b.window, Source(self.gather.out, gathered, gathered), [self.key, self.value], tokens,
                      multiprocessors=b.multiprocessors),
            Launch("flash", (), "ngram_gate", (s.streams, tokens, 1), 256, 0, {
                "window": b.window, "key": self.key.out, "value": self.value.out, "norm_key": self.norms["norm_key"],
                "norm_query": self.norms["norm_query"], "norm_out": self.norms["norm_conv"], "columns": self.width,
                "streams": s.streams, "eps": s.eps, "x": self.streams, "out": self.normed}),
            convolution_launch(b.window, self.normed, self.conv_weights, self.history, self.streams,
                               channels=s.streams * self.width, taps=s.conv_taps, dilation=s.dilation, add=True)]


def ngram(b, streams: Rows, spec: base.NgramTable, w: base.Weights) -> Rows:
    """streams f32 [T, streams * D], in place."""
    heads, wide = len(spec.head_sizes), streams.width
    constants = {name: b.memory.array(name, np.array(values, np.int64)) for name, values in (
        ("multipliers", spec.multipliers), ("sizes", spec.head_sizes), ("offsets", spec.head_offsets))}
    gather = EmbedBlock(b, b.weight(w["table"]), b.scratch_rows("ngram_rows", heads * spec.row_width),
                        indices=b.scratch_rows("ngram_indices", heads), per_token=heads)
    history = b.state_array(f"{w['conv'].name}.history", ((spec.conv_taps - 1) * spec.dilation, wide))
    b.record(NgramBlock(
        b, spec, streams.buffer, wide // spec.streams, constants, gather,
        Product(b.weight(w["key"]), b.scratch_rows("ngram_key", wide)),
        Product(b.weight(w["value"]), b.scratch_rows("ngram_value", wide // spec.streams)),
        {role: b.memory.vector(w[role]) for role in ("norm_key", "norm_query", "norm_conv")},
        b.scratch_rows("ngram_normed", wide), b.memory.array(w["conv"].name, by_tap(w["conv"])), history.buffer))
    streams.writes[0] += 1
    return streams

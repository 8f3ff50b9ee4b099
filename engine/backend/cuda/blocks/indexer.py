"""Index of sparse attention: which cells each token attends to."""

from dataclasses import dataclass

from engine.backend import base
from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.products import Product
from engine.errors import BadModel


@dataclass
class IndexerBlock:
    """See `base.Indexer`. State: keys f32 [context, dim] and [context / block, dim]."""

    b: object
    spec: base.Attention
    query: Product
    key: Product
    norms: dict[str, Buffer]
    eps: float
    raw: Buffer
    pooled: Buffer
    scores: Buffer
    cells: Buffer
    cells_stride: int

    def window(self, tokens: int) -> list[Launch]:
        """Launches behind the projections, for windows of up to `tokens`."""
        b, index, rope = self.b, self.spec.indexer, self.spec.rope
        keep, blocks = index.budget // index.block, -(-b.max_context // index.block)
        return [
            Launch("sparse", (), "index_heads", (1, 1, 1), 256, 0, {
                "window": b.window, "query": self.query.out, "key": self.key.out, "query_norm": self.norms["indexer_q_norm"],
                "key_norm": self.norms["indexer_k_norm"], "eps": self.eps, "rope": b.rope_table(rope) if rope else None,
                "rotary": rope.dims if rope else 0, "adjacent": int(rope.adjacent) if rope else 0, "heads": index.heads,
                "dim": index.dim, "block": index.block, "raw": self.raw, "pooled": self.pooled}),
            Launch("sparse", (), "score_blocks", (min(-(-blocks // 8), 2 * b.multiprocessors), tokens, 1), 256, 0, {
                "window": b.window, "query": self.query.out, "pooled": self.pooled, "heads": index.heads, "dim": index.dim,
                "block": index.block, "keep": keep, "scores_stride": blocks, "scores": self.scores}),
            Launch("sparse", (), "select_cells", (tokens, 1, 1), 512, 0, {
                "window": b.window, "scores": self.scores, "scores_stride": blocks, "block": index.block, "keep": keep,
                "cells_stride": self.cells_stride, "cells": self.cells})]


def indexer(b, spec: base.Attention, w: base.Weights) -> IndexerBlock:
    """The index of a layer, to be run before its attention."""
    index = spec.indexer
    if index.budget // index.block < 1 or (spec.rope and spec.rope.dims > index.dim):
        raise BadModel(f"{w['indexer_k'].name}: an index of {index} does not go with {spec.rope}")
    blocks, layer = -(-b.max_context // index.block), w["indexer_k"].name
    stride = 1 + min(b.max_context, (index.budget // index.block + 1) * index.block - 1)
    return IndexerBlock(
        b, spec, Product(b.weight(w["indexer_q"]), b.scratch_rows("index_query", index.heads * index.dim)),
        Product(b.weight(w["indexer_k"]), b.scratch_rows("index_key", index.dim)),
        {role: b.memory.vector(w[role]) for role in ("indexer_q_norm", "indexer_k_norm")}, spec.eps,
        b.state_array(f"{layer}.raw", (b.max_context, index.dim), positional=True).buffer,
        b.state_array(f"{layer}.pooled", (blocks, index.dim), positional=True, cells_per_row=index.block).buffer,
        b.scratch_rows("block_scores", blocks), b.scratch_rows("cells", stride), stride)

"""Attention: one launch for the projections of a format, one for everything up to the heads' outputs, one for the output."""

from dataclasses import dataclass

import numpy as np

from engine.backend import base
from engine.backend.cuda.blocks.indexer import IndexerBlock, indexer
from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.memory import Weight
from engine.backend.cuda.products import Product, Source, products
from engine.backend.cuda.rows import Target
from engine.errors import BadModel

_TILE, _LENGTHS = 64, 32  # cells of a tile, and of the smallest split, as in kernels/attention.cu
_MOST_TILE_BYTES = 64 << 10  # of shared memory, so that every card has room for it
_MOST_SPLITS = 128  # as in kernels/attention.cu
_MOST_VALUES = 7168  # of the queries and results of a key head, which the kernel keeps in shared memory


class KeyValueCache:
    """Keys f16 [kv heads, context, head dim] and values alike, by position."""

    def __init__(self, b, spec: base.Attention, name: str) -> None:
        self.spec = spec
        shape = (spec.kv_heads, b.max_context)
        self.keys = b.state_array(f"{name}.keys", (*shape, spec.head_dim), np.float16, positional=True)
        self.values = b.state_array(f"{name}.values", (*shape, spec.value_dim), np.float16, positional=True)


@dataclass
class AttentionBlock:
    """See `base.Attention`."""

    b: object
    spec: base.Attention
    source: Source
    query: Product
    key: Product | None
    value: Product | None
    cache: KeyValueCache
    norms: dict[str, Buffer]
    sinks: Buffer | None
    mixed: Buffer
    output: Weight
    output_bias: Buffer | None
    index: IndexerBlock | None
    target: Target

    def window(self, tokens: int) -> list[Launch]:
        """Launches for windows of up to `tokens`."""
        b, s = self.b, self.spec
        projected = [product for product in (self.query, self.key, self.value) if product is not None]
        if self.index:
            projected += [self.index.query, self.index.key]
        launches = products(b.window, self.source, projected, tokens, multiprocessors=b.multiprocessors)
        group = s.heads // s.kv_heads
        splits = max(1, min(b.multiprocessors // s.kv_heads, -(-b.max_context // _LENGTHS), _MOST_SPLITS))
        stage_bytes = 2 * _TILE * (s.head_dim + s.value_dim)
        stages = 2 if 2 * stage_bytes <= _MOST_TILE_BYTES else 1
        query_stride = s.head_dim * (2 if s.gated else 1)
        if s.whole_norms:
            launches += [b.norm_launch(product.out, heads * s.head_dim, self.norms[role], s.eps, tokens)
                         for role, product, heads in (("q_norm", self.query, s.heads), ("k_norm", self.key, s.kv_heads))
                         if product is not None and role in self.norms]
        if self.index:
            launches += self.index.window(tokens)
        launches.append(Launch(
            "attention", (("DIM", str(s.head_dim)), ("VALUE_DIM", str(s.value_dim)), ("HEADS_A_KEY", str(group)),
                          ("STAGES", str(stages))), "attention", (splits, s.kv_heads, tokens), 320, stages * stage_bytes, {
                "window": b.window, "query": self.query.out, "key": self.key.out if self.key else None,
                "value": (self.value or self.key).out if self.key else None, "query_stride": query_stride,
                "query_norm": self.norms.get("q_norm"), "key_norm": self.norms.get("k_norm"),
                "value_norm": int(s.value_norm), "pre_normed": int(s.whole_norms), "eps": s.eps, "scale": s.scale,
                "rope": b.rope_table(s.rope) if s.rope else None, "rotary": s.rope.dims if s.rope else 0,
                "adjacent": int(s.rope.adjacent) if s.rope else 0, "gate": int(s.gated),
                "keys": self.cache.keys.buffer, "values": self.cache.values.buffer, "kv_heads": s.kv_heads,
                "context": b.max_context, "sliding": s.window, "sinks": self.sinks,
                "cells": self.index.cells if self.index else None,
                "cells_stride": self.index.cells_stride if self.index else 0,
                "parts": b.memory.scratch("attention.parts", 4 * 8 * s.heads * splits * s.value_dim),
                "part_sums": b.memory.scratch("attention.sums", 4 * 8 * s.heads * splits * 2),
                "arrived": b.memory.scratch("attention.arrived", 4 * 8 * s.kv_heads), "out": self.mixed}))
        width = s.heads * s.value_dim
        return launches + products(
            b.window, Source(self.mixed, width, width), [Product(self.output, self.target.out, self.output_bias)], tokens,
            multiprocessors=b.multiprocessors, accumulate=self.target.accumulate, scale=self.target.scale)


def attention(b, x, spec: base.Attention, w: base.Weights, cache: KeyValueCache | None):
    """Record the block on rows x f32 [T, D]: rows f32 [T, D]."""
    group, dim = spec.heads // spec.kv_heads, spec.head_dim
    if dim % 8 or spec.value_dim % 8 or spec.value_dim > 512 or group * (dim + spec.value_dim) > _MOST_VALUES:
        raise BadModel(f"{w['q'].name}: {group} query heads of {dim} and values of {spec.value_dim} a key head: CUDA has "
                       f"multiples of 8, and {_MOST_VALUES} in all")
    if "k" in w:
        cache = cache or KeyValueCache(b, spec, w["k"].name)
    if cache is None or (cache.spec.kv_heads, cache.spec.head_dim) != (spec.kv_heads, dim):
        raise BadModel(f"{w['q'].name}: there are no keys of its shape to attend to")

    def product(role: str, name: str, width: int) -> Product | None:
        if role not in w:
            return None
        return Product(b.weight(w[role]), b.scratch_rows(name, width), b.optional_vector(w.get(f"{role}_bias")))

    rows = b.new_rows("block_out", w["output"].shape[0])
    rows.target = Target(rows.buffer)
    b.record(AttentionBlock(
        b, spec, b.source(x), product("q", "query", spec.heads * dim * (2 if spec.gated else 1)),
        product("k", "key", spec.kv_heads * dim), product("v", "value", spec.kv_heads * spec.value_dim), cache,
        {role: b.memory.vector(w[role]) for role in ("q_norm", "k_norm") if role in w}, b.optional_vector(w.get("sinks")),
        b.scratch_rows("mixed", spec.heads * spec.value_dim), b.weight(w["output"]),
        b.optional_vector(w.get("output_bias")), indexer(b, spec, w) if spec.indexer else None, rows.target))
    return rows



"""Launches of a prompt's attention: projections, heads into their places, attention over the cache, and the output."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.backend import base
from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.memory import Weight
from engine.backend.cuda.products import Source
from engine.backend.cuda.prompt.chunk import Chunk
from engine.backend.cuda.prompt.products import Matrix, products
from engine.backend.cuda.prompt.records import round_rows
from engine.backend.cuda.rows import Target
from engine.errors import BadModel

_MOST_DIM = 512
_TILES = ((8, 64), (8, 32), (8, 16), (4, 32), (4, 16), (2, 16))  # warps and cells: larger ones read keys and values less often


@dataclass(frozen=True)
class AttentionBuffers:
    """Where the block's data is: weights by role (q k v output, without k the layer only reads the cache), vectors by role
    (norms, biases, sinks), the rotary table f32 [context, 2, dims / 2], and the cache f16 [kv heads, context, dim]."""

    weights: Mapping[str, Weight]
    vectors: Mapping[str, Buffer]
    rope: Buffer | None
    keys: Buffer
    values: Buffer


def attention(chunk: Chunk, spec: base.Attention, held: AttentionBuffers, source: Source, target: Target) -> list[Launch]:
    """The whole block, from the rows of `source` to the target."""
    weights, vectors = held.weights, held.vectors
    stride = spec.head_dim * (2 if spec.gated else 1)
    widths = {"q": spec.heads * stride, "k": spec.kv_heads * spec.head_dim, "v": spec.kv_heads * spec.value_dim}
    projected = {role: chunk.rows(f"attention.{role}", width) for role, width in widths.items() if role in weights}
    x, launches = round_rows(chunk, source, [weights[role] for role in projected], name="attention")
    launches += products(chunk, x, [Matrix(weights[role], out, widths[role], bias=vectors.get(f"{role}_bias"))
                                    for role, out in projected.items()])
    mixed = chunk.rows("mixed", spec.heads * spec.value_dim)
    launches += heads_and_mixture(chunk, spec, held, projected, mixed)
    width = spec.heads * spec.value_dim
    y, rounding = round_rows(chunk, Source(mixed, width, width), [weights["output"]], name="mixed")
    return launches + rounding + products(
        chunk, y, [Matrix(weights["output"], target.out, weights["output"].rows, bias=vectors.get("output_bias"))],
        accumulate=target.accumulate, scale=target.scale)


def heads_and_mixture(chunk: Chunk, spec: base.Attention, held: AttentionBuffers, projected: Mapping[str, Buffer],
                      mixed: Buffer) -> list[Launch]:
    """From projections f32 by role to mixed f32 [tokens, heads * value_dim]; keys and values go into the cache."""
    dim, value_dim, group = spec.head_dim, spec.value_dim, spec.heads // spec.kv_heads
    if dim % 8 or value_dim % 8 or (value_dim > 256 and value_dim % 16) or max(dim, value_dim) > _MOST_DIM:
        raise BadModel(f"heads of {dim} and {value_dim}: CUDA has multiples of 8, over 256 of 16, up to {_MOST_DIM}")
    stride = dim * (2 if spec.gated else 1)
    vectors, key = held.vectors, projected.get("k")
    launches = []
    if spec.whole_norms:
        launches = [_whole_norm(chunk, projected[role], heads * dim, vectors[f"{role}_norm"], spec.eps)
                    for role, heads in (("q", spec.heads), ("k", spec.kv_heads))
                    if role in projected and f"{role}_norm" in vectors]
    launches.append(Launch("prompt_heads", (), "place_heads", (chunk.tokens, 1, 1), 256, 0, {
        "window": chunk.window, "query": projected["q"], "key": key, "value": projected.get("v", key), "heads": spec.heads,
        "query_stride": stride, "kv_heads": spec.kv_heads, "dim": dim, "value_dim": value_dim,
        "query_norm": vectors.get("q_norm"), "key_norm": vectors.get("k_norm"), "value_norm": int(spec.value_norm),
        "pre_normed": int(spec.whole_norms), "eps": spec.eps, "rope": held.rope, "rotary": spec.rope.dims if spec.rope else 0,
        "adjacent": int(spec.rope.adjacent) if spec.rope else 0, "keys": held.keys, "values": held.values,
        "context": chunk.context}))
    warps, cells = _tile(chunk, dim, value_dim, group)
    tokens = 16 * warps // group  # of a block of threads
    defines = {"DIM": dim, "VALUE_DIM": value_dim, "HEADS_A_KEY": group, "WARPS": warps, "CELLS": cells}
    launches.append(Launch(
        "prompt_attention", tuple((name, str(value)) for name, value in defines.items()), "prompt_attention",
        (-(-chunk.tokens // tokens), spec.kv_heads, 1 if value_dim <= 256 else 2), 32 * warps,
        _shared_bytes(dim, value_dim, warps, cells), {
            "window": chunk.window, "query": projected["q"], "query_stride": stride, "keys": held.keys, "values": held.values,
            "kv_heads": spec.kv_heads, "context": chunk.context, "sliding": spec.window, "scale": spec.scale,
            "sinks": vectors.get("sinks"), "gate": int(spec.gated), "out": mixed}))
    return launches


def _whole_norm(chunk: Chunk, x: Buffer, width: int, weight: Buffer, eps: float) -> Launch:
    """A norm over all heads at once, in place."""
    return Launch("rows", (), "norm_rows", (1, chunk.tokens, 1), 256, 0, {
        "window": chunk.window, "x": x, "weight": weight, "eps": eps, "columns": width, "parts": 1, "out": x})


def _tile(chunk: Chunk, dim: int, value_dim: int, group: int) -> tuple[int, int]:
    """Warps and cells of the largest tile that the card has shared memory for, and a thread registers."""
    most_cells = 16 if dim > 256 else 32 if value_dim > 128 else 64
    for warps, cells in _TILES:
        if cells <= most_cells and group <= 16 * warps and _shared_bytes(dim, value_dim, warps, cells) <= chunk.shared_bytes:
            return warps, cells
    raise BadModel(f"{group} query heads of {dim} for a key head: too many for this card")


def _shared_bytes(dim: int, value_dim: int, warps: int, cells: int) -> int:
    """Two tiles of cells, and the queries where they do not stay in registers (kernels/prompt_attention.cu)."""
    steps, values = -(-dim // 32), value_dim if value_dim <= 256 else value_dim // 2
    return 2 * cells * 16 * (4 * steps + 8 * -(-values // 64)) + (0 if steps <= 4 else 16 * warps * 4 * steps * 16)

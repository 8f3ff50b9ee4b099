"""Launches of a whole model for a chunk of a prompt, from the operations that its description recorded."""

from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatch

from engine.backend.cuda.blocks.attention import AttentionBlock
from engine.backend.cuda.blocks.experts import ExpertsBlock, FeedForwardBlock
from engine.backend.cuda.blocks.plain import AddBlock, EmbedBlock, HeadBlock, NormBlock
from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.products import WINDOWS, Source
from engine.backend.cuda.prompt.attention import AttentionBuffers, attention
from engine.backend.cuda.prompt.chunk import Chunk
from engine.backend.cuda.prompt.experts import ExpertsBuffers, experts, feed_forward
from engine.backend.cuda.rows import Operation, Target


def prompt_launches(operations: Sequence[Operation], chunk: Chunk) -> list[Launch] | None:
    """All launches for up to `chunk.tokens` tokens, whose ids stand at `chunk.ids`; the head's logits are those of at most
    eight wanted rows. None if an operation is for windows only. Before memory is allocated: rows grow to the chunk's size."""
    launches: list[Launch] = []
    for operation in operations:
        found = launches_of(operation, chunk)
        if found is None:
            return None
        launches += found
    return launches


@singledispatch
def launches_of(operation: Operation, chunk: Chunk) -> list[Launch] | None:
    """Launches of one operation; None: it has none for many tokens."""
    return None


def _grown(chunk: Chunk, buffer: Buffer, width: int) -> None:
    buffer.grow(4 * chunk.tokens * width)


def _read(chunk: Chunk, source: Source) -> Source:
    _grown(chunk, source.x, source.stride)
    return source


def _written(chunk: Chunk, target: Target, width: int) -> Target:
    _grown(chunk, target.out, width)
    return target


@launches_of.register
def _(operation: EmbedBlock, chunk: Chunk) -> list[Launch] | None:
    if operation.indices is not None:
        return None
    _grown(chunk, operation.out, operation.copies * operation.table.columns)
    return [replace(launch, arguments={**launch.arguments, "tokens": chunk.ids}) for launch in operation.window(chunk.tokens)]


@launches_of.register
def _(operation: NormBlock, chunk: Chunk) -> list[Launch]:
    _grown(chunk, operation.x, operation.width)
    _grown(chunk, operation.out, operation.width)
    return operation.window(chunk.tokens)


@launches_of.register
def _(operation: AddBlock, chunk: Chunk) -> list[Launch]:
    _grown(chunk, operation.x, operation.width)
    if operation.y is not None:
        _grown(chunk, operation.y, operation.width)
    return operation.window(chunk.tokens)


@launches_of.register
def _(operation: HeadBlock, chunk: Chunk) -> list[Launch]:
    _read(chunk, operation.source)
    return operation.window(max(WINDOWS))


@launches_of.register
def _(operation: AttentionBlock, chunk: Chunk) -> list[Launch] | None:
    if operation.index is not None:
        return None
    products = {"q": operation.query, "k": operation.key, "v": operation.value}
    weights = {role: product.weight for role, product in products.items() if product is not None}
    vectors = dict(operation.norms) | {f"{role}_bias": product.bias for role, product in products.items()
                                       if product is not None and product.bias is not None}
    vectors |= {role: buffer for role, buffer in (("sinks", operation.sinks), ("output_bias", operation.output_bias)) if buffer}
    rope = operation.spec.rope
    held = AttentionBuffers(weights | {"output": operation.output}, vectors, operation.b.rope_table(rope) if rope else None,
                            operation.cache.keys.buffer, operation.cache.values.buffer)
    return attention(chunk, operation.spec, held, _read(chunk, operation.source),
                     _written(chunk, operation.target, operation.output.rows))


@launches_of.register
def _(operation: ExpertsBlock, chunk: Chunk) -> list[Launch]:
    weights = {"down_exps": operation.down}
    if operation.up is operation.gate:
        weights["gate_up_exps"] = operation.gate
    else:
        weights |= {"gate_exps": operation.gate, "up_exps": operation.up}
    if operation.shared is not None:
        shared = operation.shared
        weights |= {"gate_shared": shared.gate.weight, "up_shared": shared.up.weight, "down_shared": shared.down}
    if operation.shared_gate is not None:
        weights["router_shared"] = operation.shared_gate.weight
    held = ExpertsBuffers(weights, operation.vectors, operation.router, operation.usage)
    other = operation.router_source
    return experts(chunk, operation.spec, held, _read(chunk, operation.source),
                   _written(chunk, operation.target, operation.down.rows),
                   router_source=_read(chunk, other) if other is not None else None)


@launches_of.register
def _(operation: FeedForwardBlock, chunk: Chunk) -> list[Launch]:
    weights = {"gate": operation.gate.weight, "up": operation.up.weight, "down": operation.down}
    return feed_forward(chunk, weights, _read(chunk, operation.source), _written(chunk, operation.target, operation.down.rows),
                        activation=operation.activation)

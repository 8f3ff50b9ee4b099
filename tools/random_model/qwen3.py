"""Random models of `qwen3moe`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tools.random_model.base import (
    Recipe,
    Sizes,
    Weights,
    attention_tensors,
    common_metadata,
    embedding_tensors,
    expert_tensors,
    head_norms,
    head_tensors,
)

_MOE = Sizes(width=64, layers=3, heads=6, kv_heads=2, head_dim=32, rope_dims=32, rope_base=1e6, ff=48, vocab=167,
             experts=10, experts_used=3)  # fmt: skip


def _metadata(s: Sizes, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    return common_metadata(s)


def _tensors(w: Weights, s: Sizes) -> None:
    embedding_tensors(w, s)
    for i in range(s.layers):
        b = f"blk.{i}."
        attention_tensors(w, s, b)
        head_norms(w, s, b)
        w.norm(b + "ffn_norm", s.width)
        expert_tensors(w, s, b)
    head_tensors(w, s)


MOE = Recipe(
    architecture="qwen3moe", tiny=_MOE, metadata=_metadata, tensors=_tensors,
    blocks=replace(_MOE, width=256, heads=8, kv_heads=2, head_dim=64, rope_dims=64, ff=256),
)  # fmt: skip

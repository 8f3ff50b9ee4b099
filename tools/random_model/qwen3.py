"""Random models of `qwen3` (dense, tied) and `qwen3moe`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tools.random_model.base import (
    Recipe,
    Sizes,
    Weights,
    attention_tensors,
    common_metadata,
    expert_tensors,
    ffn_tensors,
    head_norms,
    stack,
)

_DENSE = Sizes(width=80, layers=3, heads=6, kv_heads=3, head_dim=32, rope_dims=32, rope_base=1e6, ff=120, vocab=167,
               tied=True)  # fmt: skip
_MOE = Sizes(width=64, layers=3, heads=6, kv_heads=2, head_dim=32, rope_dims=32, rope_base=1e6, ff=48, vocab=167,
             experts=10, experts_used=3)  # fmt: skip


def _metadata(s: Sizes, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    return common_metadata(s)


def _layer(w: Weights, s: Sizes, b: str) -> None:
    attention_tensors(w, s, b)
    head_norms(w, s, b)
    w.norm(b + "ffn_norm", s.width)
    if s.experts:
        expert_tensors(w, s, b)
    else:
        ffn_tensors(w, s, b)


DENSE = Recipe(
    architecture="qwen3", tiny=_DENSE, metadata=_metadata, tensors=stack(_layer),
    blocks=replace(_DENSE, width=256, heads=8, kv_heads=2, head_dim=64, rope_dims=64, ff=512),
)  # fmt: skip
MOE = Recipe(
    architecture="qwen3moe", tiny=_MOE, metadata=_metadata, tensors=stack(_layer),
    blocks=replace(_MOE, width=256, heads=8, kv_heads=2, head_dim=64, rope_dims=64, ff=256),
)  # fmt: skip

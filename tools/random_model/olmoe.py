"""Random models of `olmoe`: norms over the whole query and key vectors. The reference asks for as many key heads as heads."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tools.random_model.base import Recipe, Sizes, Weights, attention_tensors, common_metadata, expert_tensors, stack

_SIZES = Sizes(width=72, layers=3, heads=6, kv_heads=6, head_dim=12, rope_dims=12, rope_base=1e4, ff=52, vocab=167,
               experts=12, experts_used=5)  # fmt: skip


def _metadata(s: Sizes, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    return common_metadata(s, eps=1e-5, expert_key="feed_forward_length")


def _layer(w: Weights, s: Sizes, b: str) -> None:
    attention_tensors(w, s, b)
    w.norm(b + "attn_q_norm", s.heads * s.head_dim)
    w.norm(b + "attn_k_norm", s.kv_heads * s.head_dim)
    w.norm(b + "ffn_norm", s.width)
    expert_tensors(w, s, b)


RECIPE = Recipe(
    architecture="olmoe", tiny=_SIZES, metadata=_metadata, tensors=stack(_layer),
    blocks=replace(_SIZES, width=256, heads=8, kv_heads=8, head_dim=32, rope_dims=32, ff=256),
)  # fmt: skip

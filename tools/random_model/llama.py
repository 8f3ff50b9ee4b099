"""Random models of `llama`: dense with attention biases and a tied head, and with experts as in Mixtral."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tools.random_model.base import (
    Recipe,
    Sizes,
    Weights,
    attention_biases,
    attention_tensors,
    common_metadata,
    expert_tensors,
    ffn_tensors,
    stack,
)

_DENSE = Sizes(width=96, layers=3, heads=6, kv_heads=2, head_dim=24, rope_dims=24, rope_base=5e5, ff=136, vocab=167,
               tied=True)  # fmt: skip
_MIXTRAL = Sizes(width=64, layers=3, heads=4, kv_heads=2, head_dim=16, rope_dims=16, rope_base=1e4, ff=96, vocab=167,
                 experts=6, experts_used=2)  # fmt: skip


def _metadata(s: Sizes, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    return common_metadata(s, eps=1e-5, expert_key="feed_forward_length")


def _layer(w: Weights, s: Sizes, b: str) -> None:
    attention_tensors(w, s, b)
    if not s.experts:
        attention_biases(w, s, b)
    w.norm(b + "ffn_norm", s.width)
    if s.experts:
        expert_tensors(w, s, b)
    else:
        ffn_tensors(w, s, b)


DENSE = Recipe(
    architecture="llama", tiny=_DENSE, metadata=_metadata, tensors=stack(_layer),
    blocks=replace(_DENSE, width=256, heads=8, head_dim=32, rope_dims=32, ff=512),
)  # fmt: skip
MOE = Recipe(
    architecture="llama", tiny=_MIXTRAL, metadata=_metadata, tensors=stack(_layer),
    blocks=replace(_MIXTRAL, width=256, heads=8, kv_heads=2, head_dim=32, rope_dims=32, ff=256),
)  # fmt: skip

"""Random models of `granitemoe`: factors everywhere, and a shared expert without a gate."""

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
    stack,
)

_SIZES = Sizes(width=88, layers=3, heads=4, kv_heads=2, head_dim=22, rope_dims=22, rope_base=1e4, ff=36, shared_ff=60,
               vocab=167, experts=8, experts_used=3, tied=True)  # fmt: skip


def _metadata(s: Sizes, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    return common_metadata(s, expert_key="feed_forward_length") | {
        "expert_shared_feed_forward_length": s.shared_ff,
        "embedding_scale": 1.75,
        "residual_scale": 0.65,
        "attention.scale": 0.3,
        "logit_scale": 1.5,
    }


def _layer(w: Weights, s: Sizes, b: str) -> None:
    attention_tensors(w, s, b)
    w.norm(b + "ffn_norm", s.width)
    expert_tensors(w, s, b)
    ffn_tensors(w, s, b, "_shexp", ff=s.shared_ff)


RECIPE = Recipe(
    architecture="granitemoe", tiny=_SIZES, metadata=_metadata, tensors=stack(_layer),
    blocks=replace(_SIZES, width=256, heads=8, head_dim=32, rope_dims=32, ff=256, shared_ff=256),
)  # fmt: skip

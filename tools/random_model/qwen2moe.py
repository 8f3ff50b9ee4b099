"""Random models of `qwen2moe`: attention biases, a shared expert with a gate."""

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

_SIZES = Sizes(width=72, layers=3, heads=6, kv_heads=2, head_dim=12, rope_dims=12, rope_base=1e6, ff=44, shared_ff=100,
               vocab=167, experts=9, experts_used=4)  # fmt: skip


def _metadata(s: Sizes, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    return common_metadata(s) | {"expert_shared_feed_forward_length": s.shared_ff}


def _layer(w: Weights, s: Sizes, b: str) -> None:
    attention_tensors(w, s, b)
    attention_biases(w, s, b)
    w.norm(b + "ffn_norm", s.width)
    expert_tensors(w, s, b)
    w.matrix(b + "ffn_gate_inp_shexp", s.width)
    ffn_tensors(w, s, b, "_shexp", ff=s.shared_ff)


RECIPE = Recipe(
    architecture="qwen2moe", tiny=_SIZES, metadata=_metadata, tensors=stack(_layer),
    blocks=replace(_SIZES, width=256, heads=8, head_dim=32, rope_dims=32, ff=256, shared_ff=512),
)  # fmt: skip

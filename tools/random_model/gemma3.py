"""Random models of `gemma3`: five sliding layers for one that sees everything, two rotations, norms on both sides."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tools.random_model.base import (
    Recipe,
    Sizes,
    Weights,
    attention_tensors,
    common_metadata,
    ffn_tensors,
    head_norms,
    stack,
)

_SIZES = Sizes(width=72, layers=8, heads=6, kv_heads=2, head_dim=20, rope_dims=20, rope_base=1e6, ff=100, vocab=167,
               window=13, tied=True)  # fmt: skip


def _metadata(s: Sizes, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    return common_metadata(s) | {
        "attention.sliding_window": s.window,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
    }


def _layer(w: Weights, s: Sizes, b: str) -> None:
    attention_tensors(w, s, b)
    head_norms(w, s, b)
    w.norm(b + "post_attention_norm", s.width)
    w.norm(b + "ffn_norm", s.width)
    ffn_tensors(w, s, b)
    w.norm(b + "post_ffw_norm", s.width)


RECIPE = Recipe(
    architecture="gemma3", tiny=_SIZES, metadata=_metadata, tensors=stack(_layer),
    blocks=replace(_SIZES, width=256, heads=8, head_dim=64, rope_dims=64, ff=512),
)  # fmt: skip

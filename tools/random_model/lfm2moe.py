"""Random models of `lfm2moe`: short convolutions, attention on some layers, a dense layer first, biased sigmoid routers."""

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
    ffn_tensors,
    head_norms,
)

_SIZES = Sizes(width=96, layers=5, heads=6, kv_heads=2, head_dim=16, rope_dims=16, rope_base=1e6, ff=44, vocab=167,
               experts=10, experts_used=3, shared_ff=120, tied=True)  # fmt: skip
_TAPS = 3
_DENSE_LAYERS = 1
_PERIOD = 3  # every third layer is attention
_SIGMOID = 2


def _is_attention(layer: int) -> bool:
    return layer % _PERIOD == 1


def _metadata(s: Sizes, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    return common_metadata(s, eps=1e-5) | {
        "attention.head_count_kv": [s.kv_heads if _is_attention(i) else 0 for i in range(s.layers)],
        "shortconv.l_cache": _TAPS,
        "leading_dense_block_count": _DENSE_LAYERS,
        "feed_forward_length": s.shared_ff,
        "expert_gating_func": _SIGMOID,
    }


def _tensors(w: Weights, s: Sizes) -> None:
    embedding_tensors(w, s)
    for i in range(s.layers):
        b = f"blk.{i}."
        if _is_attention(i):
            attention_tensors(w, s, b)
            head_norms(w, s, b)
        else:
            w.norm(b + "attn_norm", s.width)
            w.matrix(b + "shortconv.in_proj", 3 * s.width, s.width)
            w.matrix(b + "shortconv.conv", s.width, _TAPS)
            w.matrix(b + "shortconv.out_proj", s.width, s.width)
        w.norm(b + "ffn_norm", s.width)
        if i < _DENSE_LAYERS:
            ffn_tensors(w, s, b, ff=s.shared_ff)
        else:
            expert_tensors(w, s, b)
            w.bias(b + "exp_probs_b", s.experts)
    w.norm("token_embd_norm", s.width)


RECIPE = Recipe(
    architecture="lfm2moe", tiny=_SIZES, metadata=_metadata, tensors=_tensors,
    blocks=replace(_SIZES, width=256, layers=3, heads=8, head_dim=32, rope_dims=32, ff=256, shared_ff=512),
)  # fmt: skip

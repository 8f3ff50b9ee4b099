"""Random models of `deepseek2`: as V3 (queries through a narrow layer, a key and a value projection a head, sigmoid router with
groups and a bias), and as V2-Lite (plain queries, both projections in one tensor, softmax router). The reference knows a Lite
by its 27 layers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tools.random_model.base import (
    Recipe,
    Sizes,
    Weights,
    common_metadata,
    embedding_tensors,
    expert_tensors,
    ffn_tensors,
    head_tensors,
)

_DENSE_LAYERS, _SHARED = 1, 2
_SIZES = Sizes(width=72, layers=4, heads=6, kv_heads=1, head_dim=28, rope_dims=12, rope_base=1e4, ff=44, shared_ff=88,
               vocab=167, experts=12, experts_used=4, latent=40, query_rank=52, value_dim=20)  # fmt: skip
_LITE_SIZES = replace(_SIZES, layers=27, width=64, heads=4, kv_heads=4, head_dim=24, rope_dims=8, ff=20, shared_ff=40,
                      experts=6, experts_used=2, latent=32, query_rank=0, value_dim=12)  # fmt: skip


def _metadata(s: Sizes, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    values = common_metadata(s) | {
        "feed_forward_length": 3 * s.ff,
        "leading_dense_block_count": _DENSE_LAYERS,
        "expert_shared_count": _SHARED,
        "attention.kv_lora_rank": s.latent,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 40.0,
        "rope.scaling.original_context_length": 128,
        "rope.scaling.yarn_log_multiplier": 0.0707,
    }
    if not s.query_rank:
        return values | {"attention.value_length": s.value_dim}
    return values | {
        "attention.key_length": s.latent + s.rope_dims,
        "attention.value_length": s.latent,
        "attention.key_length_mla": s.head_dim,
        "attention.value_length_mla": s.value_dim,
        "attention.q_lora_rank": s.query_rank,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": 1.5,
        "expert_group_count": 4,
        "expert_group_used_count": 2,
    }


def _tensors(w: Weights, s: Sizes) -> None:
    embedding_tensors(w, s)
    for i in range(s.layers):
        _layer(w, s, f"blk.{i}.", dense=i < _DENSE_LAYERS)
    head_tensors(w, s)


def _layer(w: Weights, s: Sizes, b: str, *, dense: bool) -> None:
    content = s.head_dim - s.rope_dims
    w.norm(b + "attn_norm", s.width)
    if s.query_rank:
        w.matrix(b + "attn_q_a", s.query_rank, s.width)
        w.norm(b + "attn_q_a_norm", s.query_rank)
        w.matrix(b + "attn_q_b", s.heads * s.head_dim, s.query_rank)
        w.matrix(b + "attn_k_b", s.heads, s.latent, content)
        w.matrix(b + "attn_v_b", s.heads, s.value_dim, s.latent)
    else:
        w.matrix(b + "attn_q", s.heads * s.head_dim, s.width)
        w.matrix(b + "attn_kv_b", s.heads * (content + s.value_dim), s.latent)
    w.matrix(b + "attn_kv_a_mqa", s.latent + s.rope_dims, s.width)
    w.norm(b + "attn_kv_a_norm", s.latent)
    w.matrix(b + "attn_output", s.width, s.heads * s.value_dim)
    w.norm(b + "ffn_norm", s.width)
    if dense:
        ffn_tensors(w, s, b, ff=3 * s.ff)
        return
    expert_tensors(w, s, b)
    ffn_tensors(w, s, b, "_shexp", ff=s.shared_ff)
    if s.query_rank:
        w.bias(b + "exp_probs_b", s.experts)


_BLOCKS = {"width": 256, "heads": 4, "rope_dims": 64, "ff": 256, "shared_ff": 512, "latent": 256, "value_dim": 256}
RECIPE = Recipe(
    architecture="deepseek2", tiny=_SIZES, metadata=_metadata, tensors=_tensors,
    blocks=replace(_SIZES, **_BLOCKS, head_dim=320, query_rank=256),
)  # fmt: skip
LITE = Recipe(
    architecture="deepseek2", tiny=_LITE_SIZES, metadata=_metadata, tensors=_tensors,
    blocks=replace(_LITE_SIZES, **_BLOCKS, head_dim=128, kv_heads=4),
)  # fmt: skip

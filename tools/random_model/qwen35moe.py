"""Random models of `qwen35moe`: delta nets, gated attention, a gated shared expert, and a draft block that no trunk runs."""

from collections.abc import Callable, Mapping
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
    head_norms,
    head_tensors,
)
from tools.random_model.qwen4exp import delta_net_metadata, delta_net_tensors

SIZES = Sizes(
    width=64, layers=6, heads=4, kv_heads=2, head_dim=32, rope_dims=16, rope_base=1e7, ff=40, vocab=167, experts=8,
    experts_used=3, shared_ff=56, ssm_key_heads=2, ssm_value_heads=6, ssm_dim=16,
)  # fmt: skip
_INTERVAL = 3  # every third layer is attention
_DRAFT_BLOCKS = 1


def metadata(s: Sizes) -> dict[str, Any]:
    """Keys of both sister architectures."""
    return common_metadata(s) | delta_net_metadata(s) | {
        "expert_shared_feed_forward_length": s.shared_ff,
        "full_attention_interval": _INTERVAL,
    }


def _metadata(s: Sizes, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    return metadata(s) | {
        "block_count": s.layers + _DRAFT_BLOCKS,
        "nextn_predict_layers": _DRAFT_BLOCKS,
        "rope.dimension_sections": [3, 3, s.rope_dims // 2 - 6, 0],
    }


def layers(w: Weights, s: Sizes, recurrent: Callable[[Weights, Sizes, str], None]) -> None:
    """Everything but a draft block; `recurrent` makes the tensors of a delta net."""
    embedding_tensors(w, s)
    for i in range(s.layers):
        _layer(w, s, f"blk.{i}.", recurrent if (i + 1) % _INTERVAL else _gated_attention_tensors)
    head_tensors(w, s)


def _layer(w: Weights, s: Sizes, b: str, mixer: Callable[[Weights, Sizes, str], None]) -> None:
    w.norm(b + "attn_norm", s.width)
    mixer(w, s, b)
    w.norm(b + "post_attention_norm", s.width)
    expert_tensors(w, s, b)
    w.matrix(b + "ffn_gate_inp_shexp", s.width)
    ffn_tensors(w, s, b, "_shexp", ff=s.shared_ff)


def _gated_attention_tensors(w: Weights, s: Sizes, b: str) -> None:
    q_width, kv_width = s.heads * s.head_dim, s.kv_heads * s.head_dim
    w.matrix(b + "attn_q", 2 * q_width, s.width)  # per head: query rows, then gate rows
    w.matrix(b + "attn_k", kv_width, s.width)
    w.matrix(b + "attn_v", kv_width, s.width)
    w.matrix(b + "attn_output", s.width, q_width)
    head_norms(w, s, b)


def _tensors(w: Weights, s: Sizes) -> None:
    layers(w, s, delta_net_tensors)
    for i in range(s.layers, s.layers + _DRAFT_BLOCKS):
        b = f"blk.{i}."
        _layer(w, s, b, _gated_attention_tensors)
        w.matrix(b + "nextn.eh_proj", s.width, 2 * s.width)
        for name in ("enorm", "hnorm", "shared_head_norm"):
            w.norm(f"{b}nextn.{name}", s.width)


BLOCKS = replace(
    SIZES, width=256, layers=3, heads=8, head_dim=64, rope_dims=32, ff=256, shared_ff=256, ssm_value_heads=4, ssm_dim=64
)  # fmt: skip
RECIPE = Recipe(architecture="qwen35moe", tiny=SIZES, metadata=_metadata, tensors=_tensors, blocks=BLOCKS)

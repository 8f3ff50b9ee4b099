"""Random models of `nemotron_h_moe`: Mamba2, attention and experts with a squared ReLU in turns, each a layer of its own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tools.random_model.base import (
    Recipe,
    Sizes,
    Weights,
    attention_tensors,
    common_metadata,
    embedding_tensors,
    head_tensors,
)

_SIZES = Sizes(
    width=72, layers=8, heads=6, kv_heads=2, head_dim=20, rope_dims=20, rope_base=1e4, ff=44, vocab=167, experts=12,
    experts_used=3, shared_ff=56, ssm_key_heads=2, ssm_value_heads=6, ssm_dim=16, ssm_state=24,
)  # fmt: skip
_CONV_TAPS = 4
_KINDS = "MEMAEMEA"  # Mamba2, experts, attention; by layer, and again
_GROUPS, _GROUPS_USED = 4, 2
_SIGMOID = 2


def _kind(layer: int) -> str:
    return _KINDS[layer % len(_KINDS)]


def _metadata(s: Sizes, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    kinds = [_kind(i) for i in range(s.layers)]
    latent = {"moe_latent_size": s.latent} if s.latent else {}
    return common_metadata(s, eps=1e-5) | latent | {
        "attention.layer_norm_epsilon": 1e-5,
        "attention.head_count_kv": [s.kv_heads if kind == "A" else 0 for kind in kinds],
        "feed_forward_length": [s.ff if kind == "E" else 0 for kind in kinds],
        "ssm.conv_kernel": _CONV_TAPS,
        "ssm.inner_size": s.ssm_value_heads * s.ssm_dim,
        "ssm.state_size": s.ssm_state,
        "ssm.time_step_rank": s.ssm_value_heads,
        "ssm.group_count": s.ssm_key_heads,
        "expert_shared_feed_forward_length": s.shared_ff,
        "expert_shared_count": 1,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
        "expert_group_count": _GROUPS,
        "expert_group_used_count": _GROUPS_USED,
        "expert_gating_func": _SIGMOID,
    }


def _tensors(w: Weights, s: Sizes) -> None:
    embedding_tensors(w, s)
    for i in range(s.layers):
        b = f"blk.{i}."
        match _kind(i):
            case "M":
                _mamba_tensors(w, s, b)
            case "A":
                attention_tensors(w, s, b)
            case _:
                _expert_tensors(w, s, b)
    head_tensors(w, s)


def _mamba_tensors(w: Weights, s: Sizes, b: str) -> None:
    inner, heads = s.ssm_value_heads * s.ssm_dim, s.ssm_value_heads
    channels = inner + 2 * s.ssm_key_heads * s.ssm_state
    w.norm(b + "attn_norm", s.width)
    w.matrix(b + "ssm_in", inner + channels + heads, s.width)
    w.matrix(b + "ssm_conv1d", channels, _CONV_TAPS)
    w.bias(b + "ssm_conv1d", channels)
    w.normal(b + "ssm_dt.bias", heads, scale=1.0)
    decay = w.uniform(b + "ssm_a", heads, 1)
    w.tensors[b + "ssm_a"] = (-0.05 - 0.75 * decay).astype(np.float32)  # memories from a token to some twenty
    w.normal(b + "ssm_d", heads, 1, scale=0.5, mean=1.0)
    w.normal(b + "ssm_norm.weight", s.ssm_key_heads, inner // s.ssm_key_heads, scale=0.2, mean=1.0)
    w.matrix(b + "ssm_out", s.width, inner)


def _expert_tensors(w: Weights, s: Sizes, b: str) -> None:
    width = s.latent or s.width
    w.norm(b + "attn_norm", s.width)
    w.matrix(b + "ffn_gate_inp", s.experts, s.width, gain=2.0)
    w.bias(b + "exp_probs_b", s.experts)
    if s.latent:
        w.matrix(b + "ffn_latent_down", s.latent, s.width)
        w.matrix(b + "ffn_latent_up", s.width, s.latent)
    w.matrix(b + "ffn_up_exps", s.experts, s.ff, width)
    w.matrix(b + "ffn_down_exps", s.experts, width, s.ff)
    w.matrix(b + "ffn_up_shexp", s.shared_ff, s.width)
    w.matrix(b + "ffn_down_shexp", s.width, s.shared_ff)


_BLOCKS = replace(
    _SIZES, width=256, layers=4, heads=8, head_dim=64, rope_dims=64, ff=256, shared_ff=256, ssm_value_heads=4, ssm_dim=64,
    ssm_state=64,
)  # fmt: skip
PLAIN = Recipe(architecture="nemotron_h_moe", tiny=_SIZES, metadata=_metadata, tensors=_tensors, blocks=_BLOCKS)
LATENT = replace(PLAIN, tiny=replace(_SIZES, latent=40, ssm_dim=64), blocks=replace(_BLOCKS, latent=256))

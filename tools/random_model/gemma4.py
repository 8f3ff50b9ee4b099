"""Random models of `gemma4`: with experts, keys for values and shared caches as 26B-A4B may have them; dense, with an input of
its own for every layer, as E2B is."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tools.random_model.base import (
    Recipe,
    Sizes,
    Weights,
    common_metadata,
    embedding_tensors,
    ffn_tensors,
    head_tensors,
)

_EXPERTS = Sizes(width=72, layers=8, heads=6, kv_heads=3, head_dim=20, rope_dims=20, rope_base=1e6, ff=44, shared_ff=60,
                 vocab=167, experts=9, experts_used=4, window=13, tied=True, full_kv_heads=2, full_head_dim=32,
                 shared_layers=3)  # fmt: skip
_DENSE = replace(_EXPERTS, ff=52, shared_ff=0, experts=0, experts_used=0, full_kv_heads=3, layer_input=12)
_ROTATED = 0.25  # of the pairs on layers that see everything
_FULL = (1, 4, 7)  # the layers that see everything; of the five that fill caches, the last two are of either kind


def _slides(layer: int) -> bool:
    return layer not in _FULL


def _metadata(s: Sizes, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    first_reader = s.layers - s.shared_layers
    wide = [s.ff if layer < first_reader else 2 * s.ff for layer in range(s.layers)]
    return common_metadata(s) | {
        "attention.head_count_kv": [s.kv_heads if _slides(layer) else s.full_kv_heads for layer in range(s.layers)],
        "attention.key_length": s.full_head_dim,
        "attention.value_length": s.full_head_dim,
        "attention.key_length_swa": s.head_dim,
        "attention.value_length_swa": s.head_dim,
        "attention.sliding_window": s.window,
        "attention.sliding_window_pattern": [_slides(layer) for layer in range(s.layers)],
        "attention.shared_kv_layers": s.shared_layers,
        "embedding_length_per_layer_input": s.layer_input,
        "feed_forward_length": s.shared_ff if s.experts else wide,
        "final_logit_softcapping": 4.0,
        "rope.dimension_count": s.full_head_dim,
        "rope.dimension_count_swa": s.rope_dims,
        "rope.freq_base_swa": 1e4,
    }


def _tensors(w: Weights, s: Sizes) -> None:
    embedding_tensors(w, s)
    rotated = int(_ROTATED * s.full_head_dim / 2)
    w.tensors["rope_freqs.weight"] = np.array([1.0] * rotated + [1e30] * (s.full_head_dim // 2 - rotated), np.float32)
    if s.layer_input:
        w.matrix("per_layer_token_embd", s.vocab, s.layers * s.layer_input, gain=2.0)
        w.matrix("per_layer_model_proj", s.layers * s.layer_input, s.width)
        w.norm("per_layer_proj_norm", s.layer_input)
    for layer in range(s.layers):
        _layer(w, s, layer)
    head_tensors(w, s)


def _layer(w: Weights, s: Sizes, layer: int) -> None:
    b, slides, reads = f"blk.{layer}.", _slides(layer), layer >= s.layers - s.shared_layers
    dim, kv_heads = (s.head_dim, s.kv_heads) if slides else (s.full_head_dim, s.full_kv_heads)
    for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
        w.norm(b + name, s.width)
    w.matrix(b + "attn_q", s.heads * dim, s.width)
    w.norm(b + "attn_q_norm", dim)
    w.matrix(b + "attn_output", s.width, s.heads * dim)
    if not reads:
        w.matrix(b + "attn_k", kv_heads * dim, s.width)
        w.normal(b + "attn_k_norm.weight", dim, scale=0.1, mean=0.4)  # scores have no other scale
        if slides or not s.experts:
            w.matrix(b + "attn_v", kv_heads * dim, s.width)
    w.normal(b + "layer_output_scale.weight", 1, scale=0.2, mean=0.8)
    if s.experts:
        ffn_tensors(w, s, b, ff=s.shared_ff)
        _experts(w, s, b)
    else:
        ffn_tensors(w, s, b, ff=2 * s.ff if reads else s.ff)
    if s.layer_input:
        w.matrix(b + "inp_gate", s.layer_input, s.width)
        w.matrix(b + "proj", s.width, s.layer_input)
        w.norm(b + "post_norm", s.width)


def _experts(w: Weights, s: Sizes, b: str) -> None:
    for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
        w.norm(b + name, s.width)
    w.matrix(b + "ffn_gate_inp", s.experts, s.width, gain=2.0)
    w.normal(b + "ffn_gate_inp.scale", s.width, scale=2.0, mean=8.0)
    w.matrix(b + "ffn_gate_up_exps", s.experts, 2 * s.ff, s.width)
    w.matrix(b + "ffn_down_exps", s.experts, s.width, s.ff)
    w.normal(b + "ffn_down_exps.scale", s.experts, scale=0.3, mean=1.0)


_WIDE = {"width": 256, "heads": 8, "kv_heads": 2, "head_dim": 32, "full_head_dim": 64, "rope_dims": 32, "ff": 256}
EXPERTS = Recipe(
    architecture="gemma4", tiny=_EXPERTS, metadata=_metadata, tensors=_tensors,
    blocks=replace(_EXPERTS, **_WIDE, full_kv_heads=1, shared_ff=512),
)  # fmt: skip
DENSE = Recipe(
    architecture="gemma4", tiny=_DENSE, metadata=_metadata, tensors=_tensors,
    blocks=replace(_DENSE, **_WIDE, full_kv_heads=2, layer_input=256),
)  # fmt: skip

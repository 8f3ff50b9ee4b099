"""Random models of `gpt-oss`: sinks, sliding windows, yarn, biases everywhere, activations that reach the clamp."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tools.random_model.base import Recipe, Sizes, Weights, attention_biases, attention_tensors, common_metadata, stack

_SIZES = Sizes(width=72, layers=4, heads=6, kv_heads=2, head_dim=20, rope_dims=20, rope_base=15e4, ff=44, vocab=167,
               experts=8, experts_used=3, window=13)  # fmt: skip


def _metadata(s: Sizes, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    return common_metadata(s, eps=1e-5) | {
        "attention.sliding_window": s.window,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 8.0,
        "rope.scaling.original_context_length": 512,
    }


def _layer(w: Weights, s: Sizes, b: str) -> None:
    attention_tensors(w, s, b)
    attention_biases(w, s, b)
    w.bias(b + "attn_output", s.width)
    w.normal(b + "attn_sinks.weight", s.heads, scale=1.5)
    w.norm(b + "post_attention_norm", s.width)
    w.matrix(b + "ffn_gate_inp", s.experts, s.width, gain=2.0)
    w.bias(b + "ffn_gate_inp", s.experts)
    for name, out, width in (("gate", s.ff, s.width), ("up", s.ff, s.width), ("down", s.width, s.ff)):
        w.matrix(f"{b}ffn_{name}_exps", s.experts, out, width, gain=0.3 if name == "down" else 3.0)
        w.bias(f"{b}ffn_{name}_exps", s.experts, out)


RECIPE = Recipe(
    architecture="gpt-oss", tiny=_SIZES, metadata=_metadata, tensors=stack(_layer),
    blocks=replace(_SIZES, width=256, heads=8, head_dim=64, rope_dims=64, ff=256),
)  # fmt: skip

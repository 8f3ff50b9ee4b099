"""Random models of `qwen4exp`: hyper-connections, delta nets, sparse attention, n-gram embeddings."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from packs.gguf_file import Typed
from tools.random_model.base import Recipe, Sizes, Weights, common_metadata, expert_tensors, ffn_tensors

_SIZES = Sizes(
    width=64, layers=8, heads=4, kv_heads=2, head_dim=32, rope_dims=16, rope_base=1e6, ff=40, vocab=167, experts=8,
    experts_used=3, ssm_key_heads=2, ssm_value_heads=6, ssm_dim=16, hc_low_rank=16, index_heads=4, index_dim=32,
    index_budget=128, ngram_heads=4, ngram_rows=211,
)  # fmt: skip
_STREAMS = 4  # residual streams
_CONV_TAPS = 4
_NGRAM = 3
_PLE_LAYER = 1
_NO_VOCAB_EOS = 5


def _is_full_attention(layer: int) -> bool:
    return layer % 4 == 3


def _metadata(s: Sizes, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    eos = vocabulary.get("tokenizer.ggml.bos_token_id", _NO_VOCAB_EOS)  # <|endoftext|>, not the end of a turn
    sizes = primes_from(s.ngram_rows, s.ngram_heads * (_NGRAM - 1))
    return common_metadata(s) | delta_net_metadata(s) | {
        "rope.dimension_sections": [3, 3, s.rope_dims // 2 - 6, 0],
        "expert_shared_feed_forward_length": s.ff,
        "full_attention_interval": 4,
        "hyper_connection.count": _STREAMS,
        "hyper_connection.low_rank": s.hc_low_rank,
        "attention.indexer.head_count": s.index_heads,
        "attention.indexer.key_length": s.index_dim,
        "attention.indexer.top_k": s.index_budget,
        "attention.compress_ratios": [4 if _is_full_attention(i) else 0 for i in range(s.layers)],
        "ple.layers": [_PLE_LAYER],
        "ple.ngram_size": _NGRAM,
        "ple.heads_per_ngram": s.ngram_heads,
        "ple.conv_kernel": _CONV_TAPS,
        "ple.eos_token_id": eos,
        "ple.layer_multipliers": Typed(ngram_multipliers(s.vocab), "u64"),
        "ple.head_vocab_sizes": Typed(sizes, "u64"),
        "ple.head_offsets": Typed([sum(sizes[:i]) for i in range(len(sizes))], "u64"),
        "embedding_length_per_layer_input": s.width // len(sizes),
    }


def delta_net_metadata(s: Sizes) -> dict[str, Any]:
    """Sizes of the recurrent layers."""
    return {
        "ssm.conv_kernel": _CONV_TAPS,
        "ssm.inner_size": s.ssm_value_heads * s.ssm_dim,
        "ssm.state_size": s.ssm_dim,
        "ssm.time_step_rank": s.ssm_value_heads,
        "ssm.group_count": s.ssm_key_heads,
    }


def _tensors(w: Weights, s: Sizes) -> None:
    streams, sizes = _STREAMS * s.width, primes_from(s.ngram_rows, s.ngram_heads * (_NGRAM - 1))
    w.matrix("token_embd", s.vocab, s.width, gain=3.0)
    w.matrix("output", s.vocab, s.width, gain=3.0)
    w.normal("per_layer_token_embd.weight", -(-sum(sizes) // 8) * 8, s.width // len(sizes), scale=1.0)
    _hyper_connection_tensors(w, s, "output_hc_", inject=False)
    for i in range(s.layers):
        b = f"blk.{i}."
        _hyper_connection_tensors(w, s, b + "hc_attn_", inject=True)
        _hyper_connection_tensors(w, s, b + "hc_ffn_", inject=True)
        if _is_full_attention(i):
            _sparse_attention_tensors(w, s, b)
        else:
            delta_net_tensors(w, s, b)
        if i == _PLE_LAYER:
            w.matrix(b + "ple_key", streams, s.width)
            w.matrix(b + "ple_value", s.width, s.width)
            for name in ("key", "query", "conv"):
                w.norm(f"{b}ple_norm_{name}", streams)
            w.matrix(b + "ple_conv1d", streams, _CONV_TAPS)
        expert_tensors(w, s, b)
        w.matrix(b + "ffn_gate_inp_shexp", s.width)
        ffn_tensors(w, s, b, "_shexp")


def _hyper_connection_tensors(w: Weights, s: Sizes, prefix: str, *, inject: bool) -> None:
    streams = _STREAMS * s.width
    w.norm(prefix + "norm", streams)
    w.matrix(prefix + "down", s.hc_low_rank, streams, gain=4.0)  # the block divides by the number of streams
    w.matrix(prefix + "up", streams, s.hc_low_rank)
    if inject:
        w.matrix(prefix + "inject", _STREAMS, streams, gain=4.0)


def _sparse_attention_tensors(w: Weights, s: Sizes, b: str) -> None:
    q_width, kv_width = s.heads * s.head_dim, s.kv_heads * s.head_dim
    w.matrix(b + "attn_q", 2 * q_width, s.width)  # per head: query rows, then gate rows
    w.matrix(b + "attn_k", kv_width, s.width)
    w.matrix(b + "attn_v", kv_width, s.width)
    w.matrix(b + "attn_output", s.width, q_width)
    w.norm(b + "attn_q_norm", s.head_dim)
    w.norm(b + "attn_k_norm", s.head_dim)
    w.matrix(b + "indexer.q_proj", s.index_heads * s.index_dim, s.width)
    w.matrix(b + "indexer.k_proj", s.index_dim, s.width)
    w.norm(b + "indexer.q_norm", s.index_dim)
    w.norm(b + "indexer.k_norm", s.index_dim)


def delta_net_tensors(w: Weights, s: Sizes, b: str) -> None:
    """One recurrent layer, without its norm."""
    inner, channels = s.ssm_value_heads * s.ssm_dim, (2 * s.ssm_key_heads + s.ssm_value_heads) * s.ssm_dim
    w.matrix(b + "attn_qkv", channels, s.width)
    w.matrix(b + "attn_gate", inner, s.width)
    w.matrix(b + "ssm_beta", s.ssm_value_heads, s.width)
    w.matrix(b + "ssm_alpha", s.ssm_value_heads, s.width)
    decay = w.uniform(b + "ssm_a", s.ssm_value_heads)
    w.tensors[b + "ssm_a"] = (-0.05 - 0.75 * decay).astype(np.float32)  # memories from a token to some twenty
    w.normal(b + "ssm_dt.bias", s.ssm_value_heads, scale=1.0)
    w.matrix(b + "ssm_conv1d", channels, _CONV_TAPS)
    w.norm(b + "ssm_norm", s.ssm_dim)
    w.matrix(b + "ssm_out", s.width, inner)


def primes_from(start: int, count: int) -> list[int]:
    """The first `count` primes that are at least `start`: sizes of the n-gram tables."""
    found: list[int] = []
    candidate = start
    while len(found) < count:
        if candidate > 1 and all(candidate % d for d in range(2, math.isqrt(candidate) + 1)):
            found.append(candidate)
        candidate += 1
    return found


def ngram_multipliers(vocab: int, *, seed: int = 1234) -> list[int]:
    """Odd hash multipliers of the n-gram table, by the published rule (splitmix64 steps, exact 64-bit arithmetic)."""
    mask, gamma = (1 << 64) - 1, 0x9E3779B97F4A7C15
    half = ((1 << 63) - 1) // vocab // 2
    out = []
    for i in range(_NGRAM):
        z = seed + gamma * (i + 1) + gamma & mask
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        out.append(2 * ((z ^ z >> 31) % half) + 1)
    return out


RECIPE = Recipe(
    architecture="qwen4exp", tiny=_SIZES, metadata=_metadata, tensors=_tensors,
    blocks=replace(
        _SIZES, width=256, layers=4, head_dim=64, rope_dims=32, ff=256, ssm_value_heads=4, ssm_dim=64, hc_low_rank=256
    ),
)  # fmt: skip

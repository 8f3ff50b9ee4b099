"""Random models of the supported architectures: metadata and float32 weights by seed, nothing of files.

Weights are made from uniform random bits by additions and multiplications only, so a seed gives the same bits on every
machine and numpy. Settings are realistic (grouped heads, odd sizes, spread norms, scores that are not flat), as a test
of an engine needs them.
"""

import hashlib
import math
import zlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from packs.gguf_file import Typed
from tools.small_vocabulary import vocabulary_metadata


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Dimensions of a random model. What an architecture lacks is 0."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_dims: int
    rope_base: float
    ff: int  # of the dense FFN, or of one expert
    vocab: int  # with `tokenizer="none"`; a vocabulary brings its own
    experts: int = 0
    experts_used: int = 0
    tied: bool = False
    # qwen4exp only
    ssm_key_heads: int = 0
    ssm_value_heads: int = 0
    ssm_dim: int = 0
    hc_low_rank: int = 0
    index_heads: int = 0
    index_dim: int = 0
    index_budget: int = 0  # tokens
    ngram_heads: int = 0
    ngram_rows: int = 0  # least size of one head's table


_QWEN4 = Sizes(
    width=64, layers=8, heads=4, kv_heads=2, head_dim=32, rope_dims=16, rope_base=1e6, ff=40, vocab=167, experts=8,
    experts_used=3, ssm_key_heads=2, ssm_value_heads=6, ssm_dim=16, hc_low_rank=16, index_heads=4, index_dim=32,
    index_budget=128, ngram_heads=4, ngram_rows=211,
)  # fmt: skip
_QWEN3 = Sizes(width=64, layers=3, heads=6, kv_heads=2, head_dim=32, rope_dims=32, rope_base=1e6, ff=48, vocab=167,
               experts=10, experts_used=3)  # fmt: skip
_MIXTRAL = Sizes(width=64, layers=3, heads=4, kv_heads=2, head_dim=16, rope_dims=16, rope_base=1e4, ff=96, vocab=167,
                 experts=6, experts_used=2)  # fmt: skip
_LLAMA = Sizes(width=96, layers=3, heads=6, kv_heads=2, head_dim=24, rope_dims=24, rope_base=5e5, ff=136, vocab=167,
               tied=True)  # fmt: skip

PRESETS = {  # "tiny": odd sizes, F32 only; "blocks": every row is a multiple of 256 elements, so any format applies
    ("llama", "tiny"): _LLAMA,
    ("llama-moe", "tiny"): _MIXTRAL,
    ("qwen3moe", "tiny"): _QWEN3,
    ("qwen4exp", "tiny"): _QWEN4,
    ("llama", "blocks"): replace(_LLAMA, width=256, heads=8, head_dim=32, rope_dims=32, ff=512),
    ("llama-moe", "blocks"): replace(_MIXTRAL, width=256, heads=8, kv_heads=2, head_dim=32, rope_dims=32, ff=256),
    ("qwen3moe", "blocks"): replace(_QWEN3, width=256, heads=8, kv_heads=2, head_dim=64, rope_dims=64, ff=256),
    ("qwen4exp", "blocks"): replace(
        _QWEN4, width=256, layers=4, head_dim=64, rope_dims=32, ff=256, ssm_value_heads=4, ssm_dim=64, hc_low_rank=256
    ),
}  # fmt: skip
ARCHITECTURES = ("llama", "llama-moe", "qwen3moe", "qwen4exp")

_STREAMS = 4  # residual streams of qwen4exp
_CONV_TAPS = 4
_NGRAM = 3
_CONTEXT = 4096
_PLE_LAYER = 1
_NO_VOCAB_EOS = 5


@dataclass(frozen=True, kw_only=True)
class RandomModel:
    """A model before it is written."""

    architecture: str  # as in general.architecture
    sizes: Sizes
    metadata: dict[str, Any]
    tensors: dict[str, np.ndarray] = field(repr=False)  # f32, numpy order

    def digest(self) -> str:
        """SHA-256 over the weights: tells whether a seed still gives the model that a golden was made from."""
        total = hashlib.sha256()
        for name, tensor in self.tensors.items():
            total.update(f"{name} {tensor.shape}\n".encode())
            total.update(np.ascontiguousarray(tensor, "<f4"))
        return total.hexdigest()


def random_model(
    architecture: str, *, seed: int = 0, preset: str = "tiny", tokenizer: str = "none", **changes: Any
) -> RandomModel:
    """Make a model. `tokenizer` is "none" (no_vocab) or "bpe"; `changes` replace fields of the preset's Sizes."""
    if (architecture, preset) not in PRESETS or tokenizer not in ("none", "bpe"):
        raise ValueError(f"no {preset} preset of {architecture} with tokenizer {tokenizer}")
    sizes = replace(PRESETS[architecture, preset], **changes)
    vocabulary = vocabulary_metadata() if tokenizer == "bpe" else {"tokenizer.ggml.model": "no_vocab"}
    if tokenizer == "bpe":
        sizes = replace(sizes, vocab=len(vocabulary["tokenizer.ggml.tokens"]))
    name = "llama" if architecture == "llama-moe" else architecture
    metadata = {"general.name": f"random {architecture} {preset} {seed}", **_common_metadata(name, sizes), **vocabulary}
    weights = _Weights(seed)
    if name == "qwen4exp":
        eos = vocabulary.get("tokenizer.ggml.bos_token_id", _NO_VOCAB_EOS)  # <|endoftext|>, not the end of a turn
        metadata |= _qwen4exp_metadata(sizes, eos)
        _qwen4exp_tensors(weights, sizes)
    else:
        _transformer_tensors(weights, sizes, name)
    return RandomModel(architecture=name, sizes=sizes, metadata=metadata, tensors=weights.tensors)


class _Weights:
    """Collects named random tensors; each depends on the seed and its own name only."""

    def __init__(self, seed: int):
        self.seed = seed
        self.tensors: dict[str, np.ndarray] = {}

    def uniform(self, name: str, *shape: int) -> np.ndarray:
        key = self.seed << 32 | zlib.crc32(name.encode())
        return np.random.Generator(np.random.Philox(key=key)).random(shape)

    def normal(self, name: str, *shape: int, scale: float, mean: float = 0.0) -> None:
        """Nearly normal values: the sum of six uniform ones has variance 1/2."""
        draws = self.uniform(name, 6, *shape)
        total = draws[0] + draws[1] + draws[2] + draws[3] + draws[4] + draws[5] - 3.0
        self.tensors[name] = (total * (math.sqrt(2) * scale) + mean).astype(np.float32)

    def matrix(self, name: str, *shape: int, gain: float = 1.2) -> None:
        """[..., out, in]: an input of unit variance gives an output of variance gain²."""
        self.normal(name + ".weight", *shape, scale=gain / math.sqrt(shape[-1]))

    def norm(self, name: str, n: int) -> None:
        self.normal(name + ".weight", n, scale=0.2, mean=1.0)


def _common_metadata(arch: str, s: Sizes) -> dict[str, Any]:
    values: dict[str, Any] = {
        "vocab_size": s.vocab,
        "context_length": _CONTEXT,
        "embedding_length": s.width,
        "block_count": s.layers,
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.kv_heads,
        "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5 if arch == "llama" else 1e-6,
        "rope.freq_base": s.rope_base,
        "rope.dimension_count": s.rope_dims,
    }
    if s.experts:
        values |= {"expert_count": s.experts, "expert_used_count": s.experts_used}
    values["feed_forward_length" if arch == "llama" else "expert_feed_forward_length"] = s.ff
    return {f"{arch}.{key}": value for key, value in values.items()}


def _transformer_tensors(w: _Weights, s: Sizes, arch: str) -> None:
    """llama (dense with attention biases, or with experts) and qwen3moe."""
    q_width, kv_width = s.heads * s.head_dim, s.kv_heads * s.head_dim
    w.matrix("token_embd", s.vocab, s.width, gain=1.0 if s.tied else 3.0)  # a strong tied one would echo its input
    for i in range(s.layers):
        b = f"blk.{i}."
        w.norm(b + "attn_norm", s.width)
        w.matrix(b + "attn_q", q_width, s.width)
        w.matrix(b + "attn_k", kv_width, s.width)
        w.matrix(b + "attn_v", kv_width, s.width)
        w.matrix(b + "attn_output", s.width, q_width)
        if arch == "qwen3moe":
            w.norm(b + "attn_q_norm", s.head_dim)
            w.norm(b + "attn_k_norm", s.head_dim)
        if not s.experts:
            for name, width in (("q", q_width), ("k", kv_width), ("v", kv_width)):
                w.normal(f"{b}attn_{name}.bias", width, scale=0.3)
        w.norm(b + "ffn_norm", s.width)
        if s.experts:
            _expert_tensors(w, s, b)
        else:
            _ffn_tensors(w, s, b, "")
    w.norm("output_norm", s.width)
    if not s.tied:
        w.matrix("output", s.vocab, s.width, gain=3.0)


def _expert_tensors(w: _Weights, s: Sizes, b: str) -> None:
    w.matrix(b + "ffn_gate_inp", s.experts, s.width, gain=2.0)
    w.matrix(b + "ffn_gate_exps", s.experts, s.ff, s.width)
    w.matrix(b + "ffn_up_exps", s.experts, s.ff, s.width)
    w.matrix(b + "ffn_down_exps", s.experts, s.width, s.ff)


def _ffn_tensors(w: _Weights, s: Sizes, b: str, suffix: str) -> None:
    w.matrix(f"{b}ffn_gate{suffix}", s.ff, s.width)
    w.matrix(f"{b}ffn_up{suffix}", s.ff, s.width)
    w.matrix(f"{b}ffn_down{suffix}", s.width, s.ff)


def _is_full_attention(layer: int) -> bool:
    return layer % 4 == 3


def _qwen4exp_metadata(s: Sizes, eos: int) -> dict[str, Any]:
    sizes = primes_from(s.ngram_rows, s.ngram_heads * (_NGRAM - 1))
    return {
        f"qwen4exp.{key}": value
        for key, value in {
            "rope.dimension_sections": [3, 3, s.rope_dims // 2 - 6, 0],
            "expert_shared_feed_forward_length": s.ff,
            "full_attention_interval": 4,
            "ssm.conv_kernel": _CONV_TAPS,
            "ssm.inner_size": s.ssm_value_heads * s.ssm_dim,
            "ssm.state_size": s.ssm_dim,
            "ssm.time_step_rank": s.ssm_value_heads,
            "ssm.group_count": s.ssm_key_heads,
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
        }.items()
    }


def _qwen4exp_tensors(w: _Weights, s: Sizes) -> None:
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
            _delta_net_tensors(w, s, b)
        if i == _PLE_LAYER:
            w.matrix(b + "ple_key", streams, s.width)
            w.matrix(b + "ple_value", s.width, s.width)
            for name in ("key", "query", "conv"):
                w.norm(f"{b}ple_norm_{name}", streams)
            w.matrix(b + "ple_conv1d", streams, _CONV_TAPS)
        _expert_tensors(w, s, b)
        w.matrix(b + "ffn_gate_inp_shexp", s.width)
        _ffn_tensors(w, s, b, "_shexp")


def _hyper_connection_tensors(w: _Weights, s: Sizes, prefix: str, *, inject: bool) -> None:
    streams = _STREAMS * s.width
    w.norm(prefix + "norm", streams)
    w.matrix(prefix + "down", s.hc_low_rank, streams, gain=4.0)  # the block divides by the number of streams
    w.matrix(prefix + "up", streams, s.hc_low_rank)
    if inject:
        w.matrix(prefix + "inject", _STREAMS, streams, gain=4.0)


def _sparse_attention_tensors(w: _Weights, s: Sizes, b: str) -> None:
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


def _delta_net_tensors(w: _Weights, s: Sizes, b: str) -> None:
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

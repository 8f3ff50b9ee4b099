"""What recipes of random models are made of: sizes, named random tensors, and the parts that many architectures share.

Weights are made from uniform random bits by additions and multiplications only, so a seed gives the same bits on every
machine and numpy.
"""

import hashlib
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

CONTEXT = 4096


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
    shared_ff: int = 0  # of the shared expert, or of the dense FFN beside the experts
    window: int = 0  # cells that a sliding layer sees
    # gemma4 only
    full_kv_heads: int = 0  # of layers that see everything
    full_head_dim: int = 0
    shared_layers: int = 0  # the last ones, which read the caches of others
    layer_input: int = 0  # width of what a layer gets for each token
    # deepseek2 only; head_dim counts the rotated part
    latent: int = 0  # what a cell holds for all heads
    query_rank: int = 0  # 0: queries come straight from the stream
    value_dim: int = 0
    # recurrent layers
    ssm_key_heads: int = 0
    ssm_value_heads: int = 0
    ssm_dim: int = 0
    ssm_state: int = 0
    # qwen4exp only
    hc_low_rank: int = 0
    index_heads: int = 0
    index_dim: int = 0
    index_budget: int = 0  # tokens
    ngram_heads: int = 0
    ngram_rows: int = 0  # least size of one head's table


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


class Weights:
    """Collects named random tensors; each depends on the seed and its own name only."""

    def __init__(self, seed: int):
        self.seed = seed
        self.tensors: dict[str, np.ndarray] = {}

    def uniform(self, name: str, *shape: int) -> np.ndarray:
        """Values in 0..1, for the caller to make a tensor of."""
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
        """Weights of a norm, spread around 1."""
        self.normal(name + ".weight", n, scale=0.2, mean=1.0)

    def bias(self, name: str, *shape: int) -> None:
        """A bias that matters."""
        self.normal(name + ".bias", *shape, scale=0.3)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the random models of one architecture are made."""

    architecture: str  # as in general.architecture
    tiny: Sizes  # odd sizes, F32 only
    blocks: Sizes  # every row is a multiple of 256 elements, so any format applies
    metadata: Callable[[Sizes, Mapping[str, Any]], dict[str, Any]]  # of sizes and the vocabulary; keys without the prefix
    tensors: Callable[[Weights, Sizes], None]


def common_metadata(s: Sizes, *, eps: float = 1e-6, expert_key: str = "expert_feed_forward_length") -> dict[str, Any]:
    """Keys that every architecture has; `expert_key` is where it keeps the width of an expert."""
    values: dict[str, Any] = {
        "vocab_size": s.vocab,
        "context_length": CONTEXT,
        "embedding_length": s.width,
        "block_count": s.layers,
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.kv_heads,
        "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim,
        "attention.layer_norm_rms_epsilon": eps,
        "rope.freq_base": s.rope_base,
        "rope.dimension_count": s.rope_dims,
    }
    if s.experts:
        values |= {"expert_count": s.experts, "expert_used_count": s.experts_used}
    return {**values, expert_key if s.experts else "feed_forward_length": s.ff}


def embedding_tensors(w: Weights, s: Sizes) -> None:
    """The embedding; a strong tied one would echo its input."""
    w.matrix("token_embd", s.vocab, s.width, gain=1.0 if s.tied else 3.0)


def head_tensors(w: Weights, s: Sizes) -> None:
    """Last norm and, if it is not tied, the head."""
    w.norm("output_norm", s.width)
    if not s.tied:
        w.matrix("output", s.vocab, s.width, gain=3.0)


def stack(layer: Callable[[Weights, Sizes, str], None]) -> Callable[[Weights, Sizes], None]:
    """The tensors of a whole model from those of one layer, which gets its prefix "blk.N."."""

    def tensors(w: Weights, s: Sizes) -> None:
        embedding_tensors(w, s)
        for i in range(s.layers):
            layer(w, s, f"blk.{i}.")
        head_tensors(w, s)

    return tensors


def attention_tensors(w: Weights, s: Sizes, b: str) -> None:
    """Norm and projections of one layer."""
    q_width, kv_width = s.heads * s.head_dim, s.kv_heads * s.head_dim
    w.norm(b + "attn_norm", s.width)
    w.matrix(b + "attn_q", q_width, s.width)
    w.matrix(b + "attn_k", kv_width, s.width)
    w.matrix(b + "attn_v", kv_width, s.width)
    w.matrix(b + "attn_output", s.width, q_width)


def attention_biases(w: Weights, s: Sizes, b: str) -> None:
    """Biases of queries, keys and values."""
    for name, heads in (("q", s.heads), ("k", s.kv_heads), ("v", s.kv_heads)):
        w.bias(f"{b}attn_{name}", heads * s.head_dim)


def head_norms(w: Weights, s: Sizes, b: str) -> None:
    """Norms of every query and key head."""
    w.norm(b + "attn_q_norm", s.head_dim)
    w.norm(b + "attn_k_norm", s.head_dim)


def expert_tensors(w: Weights, s: Sizes, b: str) -> None:
    """Router and routed experts."""
    w.matrix(b + "ffn_gate_inp", s.experts, s.width, gain=2.0)
    w.matrix(b + "ffn_gate_exps", s.experts, s.ff, s.width)
    w.matrix(b + "ffn_up_exps", s.experts, s.ff, s.width)
    w.matrix(b + "ffn_down_exps", s.experts, s.width, s.ff)


def ffn_tensors(w: Weights, s: Sizes, b: str, suffix: str = "", *, ff: int | None = None) -> None:
    """Gate, up and down of a dense FFN or, by suffix, of a shared expert."""
    ff = ff or s.ff
    w.matrix(f"{b}ffn_gate{suffix}", ff, s.width)
    w.matrix(f"{b}ffn_up{suffix}", ff, s.width)
    w.matrix(f"{b}ffn_down{suffix}", s.width, ff)

"""The shape of the embedded model, and the hash constants of its n-gram table.

Everything else (trainer, converter, HF check) derives sizes from here. Knows nothing of torch or of files.
"""
from __future__ import annotations

from dataclasses import dataclass, field

MASK_64 = (1 << 64) - 1
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
HASH_SEED = 1234


def split_mix(x: int) -> int:
    """One step of the splitmix64 generator."""
    x = (x + GOLDEN_GAMMA) & MASK_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK_64
    return x ^ (x >> 31)


def hash_multipliers(vocab_size: int, ngram_size: int) -> tuple[int, ...]:
    """The odd multipliers of the n-gram hash, small enough that id * multiplier stays below 2**63."""
    half = ((2**63 - 1) // vocab_size) // 2
    return tuple(2 * (split_mix((HASH_SEED + GOLDEN_GAMMA * (i + 1)) & MASK_64) % half) + 1 for i in range(ngram_size))


def primes_from(start: int, count: int) -> tuple[int, ...]:
    """The first `count` primes that are at least `start`."""
    found: list[int] = []
    n = start
    while len(found) < count:
        if n > 1 and all(n % d for d in range(2, int(n**0.5) + 1)):
            found.append(n)
        n += 1
    return tuple(found)


@dataclass(frozen=True)
class TinyConfig:
    """Hyperparameters of one `qwen4exp` model; the defaults are the embedded pack's."""

    vocab: int = 4096
    width: int = 256                 # D
    layers: int = 8                  # trunk blocks; the draft block comes after them
    full_interval: int = 4           # every fourth block attends, the others are gated delta nets
    streams: int = 4                 # HC
    stream_rank: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotary_dims: int = 32
    rope_base: float = 1e6
    index_heads: int = 4
    index_dim: int = 64
    index_budget: int = 1024         # tokens a query may attend to
    block: int = 4                   # r, tokens in one selectable block
    key_heads: int = 4
    value_heads: int = 8
    state_dim: int = 64              # width of a delta-net head, keys and values alike
    conv: int = 4
    experts: int = 32
    top_k: int = 4
    expert_width: int = 96
    ple_layer: int = 1
    ple_ngram: int = 3
    ple_heads: int = 4               # per n-gram length
    ple_conv: int = 4
    ple_first_prime: int = 16001
    end_of_text: int = 0             # resets the n-gram context
    end_of_turn: int = 2
    context: int = 2048
    eps: float = 1e-6
    ple_sizes: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ple_sizes", primes_from(self.ple_first_prime, self.ple_tables))

    @property
    def ple_tables(self) -> int:
        return (self.ple_ngram - 1) * self.ple_heads

    @property
    def ple_offsets(self) -> tuple[int, ...]:
        return tuple(sum(self.ple_sizes[:i]) for i in range(self.ple_tables))

    @property
    def ple_rows(self) -> int:
        return -(-sum(self.ple_sizes) // 128) * 128

    @property
    def ple_row_width(self) -> int:
        return self.width // self.ple_tables

    @property
    def ple_multipliers(self) -> tuple[int, ...]:
        return hash_multipliers(self.vocab, self.ple_ngram)

    @property
    def key_width(self) -> int:
        return self.key_heads * self.state_dim

    @property
    def value_width(self) -> int:
        return self.value_heads * self.state_dim

    def attends(self, layer: int) -> bool:
        """Whether this block is an attention block; the draft block (number `layers`) is one."""
        return layer == self.layers or (layer + 1) % self.full_interval == 0

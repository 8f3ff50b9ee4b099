"""Writes the benchmark's model: a `qwen3moe` of random K-quant blocks whose numbers behave, tensor by tensor.

A naive random file is no benchmark: its blocks have a mean, activations grow until they overflow, and every token takes the
same few experts. Here blocks have no mean (the float minimum is 7.5 steps, which is the middle of 0..15), and what a
sublayer adds to the residual is small beside it, so that tokens stay different and spread over the experts.
tools/bench_check.py proves it. Nothing is held in memory but one tensor, so a shape may be larger than RAM.
"""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType

from engine.gguf import FORMATS

_Q4_K_STD = math.sqrt((16**2 - 1) / 12)  # of codes 0..15 around 7.5
_Q6_K_STD = math.sqrt(32**2 / 3)  # of codes -32..31
_ADDED = 0.04  # what a sublayer may add, as a part of the residual's root mean square
_SILU_PRODUCT = 0.6  # root mean square of silu(a) * b for unit normal a and b
_BLOCKS_AT_ONCE = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a `qwen3moe`; `mix` is "Q4_K" (all matrices) or "Q4_K_M" (the usual choice of Q6_K among them)."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    experts_used: int
    ff: int
    vocab: int
    context: int
    mix: str


SHAPES = {
    "small": Shape(layers=8, width=1024, heads=16, kv_heads=4, head_dim=128, experts=64, experts_used=8, ff=512,
                   vocab=16384, context=8192, mix="Q4_K_M"),
    "qwen3-30b-a3b": Shape(layers=48, width=2048, heads=32, kv_heads=4, head_dim=128, experts=128, experts_used=8, ff=768,
                           vocab=151936, context=40960, mix="Q4_K"),
}  # fmt: skip


@dataclass(frozen=True)
class _Plan:
    """One tensor: its shape in numpy order, its format, and its standard deviation (norms are ones)."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    sigma: float


def write_bench_model(path: Path, shape: Shape, *, seed: int = 0) -> None:
    """Write the model; the same seed gives the same bytes."""
    logging.getLogger("gguf.gguf_writer").setLevel(logging.WARNING)  # it announces every file it writes
    partial = path.with_name(path.name + ".part")
    writer = GGUFWriter(partial, "qwen3moe")
    writer.add_string("general.name", f"random blocks {shape.layers}x{shape.width}, {shape.experts} experts")
    writer.add_string("tokenizer.ggml.model", "no_vocab")
    for key, value in _hyperparameters(shape).items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(f"qwen3moe.{key}", value)
    plans = list(_plans(shape))
    for plan in plans:
        n_bytes = math.prod(plan.shape[:-1]) * FORMATS[plan.kind].row_bytes(plan.shape[-1])
        dtype = np.dtype(np.float32 if plan.kind == GGMLQuantizationType.F32 else np.int8)
        writer.add_tensor_info(plan.name, plan.shape, dtype, n_bytes, raw_dtype=plan.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.Generator(np.random.SFC64(seed))
    for plan in plans:
        writer.write_tensor_data(_data(rng, plan))
    writer.close()
    partial.replace(path)


def _hyperparameters(s: Shape) -> dict[str, int | float]:
    return {
        "vocab_size": s.vocab, "context_length": s.context, "embedding_length": s.width, "block_count": s.layers,
        "attention.head_count": s.heads, "attention.head_count_kv": s.kv_heads, "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6,
        "rope.dimension_count": s.head_dim, "expert_count": s.experts, "expert_used_count": s.experts_used,
        "feed_forward_length": s.ff, "expert_feed_forward_length": s.ff,
    }  # fmt: skip


def _plans(s: Shape) -> Iterator[_Plan]:
    """All tensors in file order."""
    float32, q4, q6 = GGMLQuantizationType.F32, GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q6_K
    mixed = s.mix == "Q4_K_M"
    unit = s.width**-0.5  # rows that keep the variance
    q_width, kv_width = s.heads * s.head_dim, s.kv_heads * s.head_dim
    output_sigma = _ADDED * q_width**-0.5
    down_sigma = _ADDED / (_SILU_PRODUCT * math.sqrt(s.ff / s.experts_used) * 1.2)  # 1.2: routes have unequal weights
    yield _Plan("token_embd.weight", (s.vocab, s.width), q4, 1.0)
    for i in range(s.layers):
        b = f"blk.{i}."
        eighth = s.layers // 8
        finer = q6 if mixed and (i < eighth or i >= 7 * s.layers // 8 or (i - eighth) % 3 == 2) else q4
        yield _Plan(b + "attn_norm.weight", (s.width,), float32, 0)
        yield _Plan(b + "attn_q.weight", (q_width, s.width), q4, unit)
        yield _Plan(b + "attn_k.weight", (kv_width, s.width), q4, unit)
        yield _Plan(b + "attn_v.weight", (kv_width, s.width), finer, unit)
        yield _Plan(b + "attn_output.weight", (s.width, q_width), q4, output_sigma)
        yield _Plan(b + "attn_q_norm.weight", (s.head_dim,), float32, 0)
        yield _Plan(b + "attn_k_norm.weight", (s.head_dim,), float32, 0)
        yield _Plan(b + "ffn_norm.weight", (s.width,), float32, 0)
        yield _Plan(b + "ffn_gate_inp.weight", (s.experts, s.width), float32, unit)
        yield _Plan(b + "ffn_gate_exps.weight", (s.experts, s.ff, s.width), q4, unit)
        yield _Plan(b + "ffn_up_exps.weight", (s.experts, s.ff, s.width), q4, unit)
        yield _Plan(b + "ffn_down_exps.weight", (s.experts, s.width, s.ff), finer, down_sigma)
    yield _Plan("output_norm.weight", (s.width,), float32, 0)
    yield _Plan("output.weight", (s.vocab, s.width), q6 if mixed else q4, unit)


def _data(rng: np.random.Generator, plan: _Plan) -> np.ndarray:
    """The tensor's file bytes, or f32 values."""
    if plan.kind == GGMLQuantizationType.F32:
        if plan.sigma == 0:
            return np.ones(plan.shape, np.float32)
        return rng.standard_normal(plan.shape, np.float32) * np.float32(plan.sigma)
    make: Callable = {GGMLQuantizationType.Q4_K: _q4_k, GGMLQuantizationType.Q6_K: _q6_k}[plan.kind]
    n = math.prod(plan.shape) // 256
    return np.concatenate([make(rng, min(_BLOCKS_AT_ONCE, n - i), plan.sigma) for i in range(0, n, _BLOCKS_AT_ONCE)])


def _random_bytes(rng: np.random.Generator, n: int, width: int) -> np.ndarray:
    """u8 [n, width]."""
    words = rng.integers(0, 1 << 64, -(-n * width // 8), np.uint64)
    return words.view(np.uint8)[: n * width].reshape(n, width)


def _q4_k(rng: np.random.Generator, n: int, sigma: float) -> np.ndarray:
    """u8 [n, 144]: d, dmin = 7.5 d, six-bit scales 32..63 with equal minima, codes."""
    blocks = _random_bytes(rng, n, 144)
    code = rng.integers(32, 64, (n, 8), np.uint8)
    d = sigma / (_Q4_K_STD * 48.4) * rng.uniform(0.8, 1.2, n)
    d = _short(d)
    blocks[:, 0:2] = d.astype("<f2").view(np.uint8).reshape(n, 2)
    blocks[:, 2:4] = (7.5 * d).astype("<f2").view(np.uint8).reshape(n, 2)
    high = (code[:, 4:] >> 4) << 6
    blocks[:, 4:8] = blocks[:, 8:12] = code[:, :4] | high
    blocks[:, 12:16] = (code[:, 4:] & 15) | code[:, 4:] << 4
    return blocks


def _short(d: np.ndarray) -> np.ndarray:
    """d rounded so that d and 7.5 d are both exact in f16: seven significant bits, and an even count of its last place."""
    mantissa, exponent = np.frexp(d)
    d = np.ldexp(np.round(mantissa * 128) / 128, exponent)
    return np.maximum(np.round(d * 2.0**23), 1) / 2.0**23


def _q6_k(rng: np.random.Generator, n: int, sigma: float) -> np.ndarray:
    """u8 [n, 210]: codes, scales of either sign (the mean of -32..31 is not 0), d."""
    blocks = _random_bytes(rng, n, 210)
    scale = rng.integers(48, 112, (n, 16), np.int8) * rng.choice(np.array([-1, 1], np.int8), (n, 16))
    blocks[:, 192:208] = scale.view(np.uint8)
    d = sigma / (_Q6_K_STD * 81.6) * rng.uniform(0.8, 1.2, n)
    blocks[:, 208:210] = d.astype("<f2").view(np.uint8).reshape(n, 2)
    return blocks

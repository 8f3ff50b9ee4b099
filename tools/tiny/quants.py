"""The two block formats the checkpoints and the pack use, Q8_0 and Q4_0, in the file's own byte layout.

Blocks of 32 along the last axis. `rounded_q4` is the same rounding in torch with a straight-through gradient, so that
training can end on weights which the file holds exactly. Knows nothing of names.
"""
from __future__ import annotations

import numpy as np

BLOCK = 32


def _blocks(x: np.ndarray) -> np.ndarray:
    if x.shape[-1] % BLOCK:
        raise ValueError(f"last axis of {x.shape} is not a multiple of {BLOCK}")
    return np.ascontiguousarray(x, np.float32).reshape(-1, BLOCK)


def _inverse(d: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.where(d == 0, 0, 1 / d.astype(np.float64))


def encode_q8(x: np.ndarray) -> np.ndarray:
    """f32 [..., n] -> bytes uint8 [..., n / 32 * 34]: an f16 scale, then 32 signed codes."""
    b = _blocks(x)
    d = np.abs(b).max(-1, keepdims=True) / 127
    codes = np.rint(b * _inverse(d)).astype(np.int8)
    return np.hstack([d.astype(np.float16).view(np.uint8), codes.view(np.uint8)]).reshape(*x.shape[:-1], -1)


def decode_q8(data: np.ndarray) -> np.ndarray:
    b = data.reshape(-1, 34)
    d = b[:, :2].copy().view(np.float16).astype(np.float32)
    return (d * b[:, 2:].view(np.int8)).reshape(*data.shape[:-1], -1)


def encode_q4(x: np.ndarray) -> np.ndarray:
    """f32 [..., n] -> bytes uint8 [..., n / 32 * 18]: an f16 scale, then 16 bytes, low nibbles the first 16 codes."""
    b = _blocks(x)
    d = np.take_along_axis(b, np.abs(b).argmax(-1)[:, None], -1) / -8
    codes = np.clip(np.floor(b * _inverse(d) + 8.5), 0, 15).astype(np.uint8)
    packed = codes[:, :16] | codes[:, 16:] << 4
    return np.hstack([d.astype(np.float16).view(np.uint8), packed]).reshape(*x.shape[:-1], -1)


def decode_q4(data: np.ndarray) -> np.ndarray:
    b = data.reshape(-1, 18)
    d = b[:, :2].copy().view(np.float16).astype(np.float32)
    codes = np.hstack([b[:, 2:] & 15, b[:, 2:] >> 4]).astype(np.float32)
    return (d * (codes - 8)).reshape(*data.shape[:-1], -1)


def rounded_q4(x):
    """A torch tensor rounded to Q4_0; its gradient passes unchanged."""
    b = x.detach().reshape(-1, BLOCK)
    d = b.gather(-1, b.abs().argmax(-1, keepdim=True)) / -8
    codes = (b / d.where(d != 0, 1) + 8.5).floor().clamp(0, 15)
    y = (d.half().float() * (codes - 8)).reshape(x.shape)
    return x + (y - x).detach()


ENCODE = {"Q8_0": encode_q8, "Q4_0": encode_q4}
DECODE = {"Q8_0": decode_q8, "Q4_0": decode_q4}

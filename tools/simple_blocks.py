"""Encoders for test data: float32 arrays to stored blocks of a named format.

The gguf package encodes the formats it can; IQ4_NL, IQ4_XS, NVFP4 and Q2_0 have a plain rounding encoder here (no search
for the best scale: good enough to test readers of the format). K formats come from the peer's `quantize`.
"""

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType

from engine.gguf import FORMATS
from packs.gguf_file import Stored


def encode(x: np.ndarray, name: str) -> Stored:
    """`x` f32 [..., columns] as blocks of the format `name`; the columns must be whole blocks."""
    kind = FORMATS[name]
    x = np.ascontiguousarray(x, np.float32)
    own = {"IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs, "NVFP4": _nvfp4, "Q2_0": _q2_0}.get(name)
    if own is None:
        data = gguf.quants.quantize(x, GGMLQuantizationType(kind.id))
    else:
        data = own(x.reshape(-1, kind.block_elements))
    return Stored(data.view(np.uint8).reshape(*x.shape[:-1], kind.row_bytes(x.shape[-1])), x.shape, kind.id)


def _nearest(unit: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Numbers u8 of the nearest values [16], of unit's shape."""
    return np.abs(unit[..., None] - values).argmin(axis=-1).astype(np.uint8)


def _iq4_nl(blocks: np.ndarray) -> np.ndarray:
    """f32 [n, 32] -> u8 [n, 18]: f16 scale, then nibbles of elements j and j + 16 in byte j."""
    values = np.array(gguf.quants.IQ4_NL.kvalues, np.float32)  # [16]
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 113).astype(np.float16)  # 113 is the largest positive value
    d = scale.astype(np.float32)
    unit = np.divide(blocks, d, out=np.zeros_like(blocks), where=d > 0)
    codes = _nearest(unit, values)  # [n, 32]
    return np.concatenate([scale.view(np.uint8), codes[:, :16] | codes[:, 16:] << 4], axis=1)


def _q2_0(blocks: np.ndarray) -> np.ndarray:
    """f32 [n, 64] -> u8 [n, 18]: f16 scale, four 2-bit codes a byte, low bits first; value = (code - 1) * scale."""
    scale = np.sqrt(np.mean(blocks**2, axis=1, keepdims=True)).astype(np.float16)  # about the best for normal values
    d = scale.astype(np.float32)
    unit = np.divide(blocks, d, out=np.zeros_like(blocks), where=d > 0)
    codes = (np.clip(np.rint(unit), -1, 2) + 1).astype(np.uint8).reshape(-1, 16, 4)
    packed = codes[..., 0] | codes[..., 1] << 2 | codes[..., 2] << 4 | codes[..., 3] << 6  # [n, 16]
    return np.concatenate([scale.view(np.uint8), packed], axis=1)


def _iq4_xs(blocks: np.ndarray) -> np.ndarray:
    """f32 [n, 256] -> u8 [n, 136]: f16 scale, high two bits and low four bits of eight scales, then nibbles as IQ4_NL's."""
    values = np.array(gguf.quants.IQ4_NL.kvalues, np.float32)  # [16]
    parts = blocks.reshape(-1, 8, 32)
    wanted = np.abs(parts).max(axis=2) / 113  # 113 is the largest positive value
    scale = (wanted.max(axis=1, keepdims=True) / 31).astype(np.float16)
    d = scale.astype(np.float32)
    factors = np.clip(np.ceil(np.divide(wanted, d, out=np.zeros_like(wanted), where=d > 0)), 1, 31)  # [n, 8]
    step = (d * factors)[:, :, None]
    codes = _nearest(np.divide(parts, step, out=np.zeros_like(parts), where=step > 0), values)  # [n, 8, 32]
    stored = factors.astype(np.uint16) + 32
    high = ((stored >> 4) << 2 * np.arange(8, dtype=np.uint16)).sum(axis=1, dtype=np.uint16).astype("<u2")[:, None]
    low = (stored[:, ::2] & 15 | (stored[:, 1::2] & 15) << 4).astype(np.uint8)  # [n, 4]
    nibbles = (codes[..., :16] | codes[..., 16:] << 4).reshape(-1, 128)
    return np.concatenate([scale.view(np.uint8), high.view(np.uint8), low, nibbles], axis=1)


def _nvfp4(blocks: np.ndarray) -> np.ndarray:
    """f32 [n, 64] -> u8 [n, 36]: four float scales of eight bits, then nibbles of elements j and j + 8 of each sixteen."""
    kind = gguf.quants.NVFP4
    runs = blocks.reshape(-1, 4, 16)
    scales = kind.fp32_to_ue4m3(np.abs(runs).max(axis=2) / 6)  # [n, 4]; 6 is the largest four-bit float
    step = kind.ue4m3_to_fp32(scales).astype(np.float32)[:, :, None]
    unit = np.divide(runs, step, out=np.zeros_like(runs), where=step > 0)
    codes = _nearest(unit, np.array(kind.kvalues, np.float32))  # [n, 4, 16]
    nibbles = (codes[..., :8] | codes[..., 8:] << 4).reshape(-1, 32)
    return np.concatenate([scales.astype(np.uint8), nibbles], axis=1)

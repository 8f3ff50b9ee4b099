"""Encoders for test data: float32 arrays to stored blocks of a named format.

The gguf package encodes the formats it can; IQ4_NL and Q2_0 have a plain rounding encoder here (no search for the
best scale: good enough to test readers of the format). K formats come from the peer's `quantize`.
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
    own = {"IQ4_NL": _iq4_nl, "Q2_0": _q2_0}.get(name)
    if own is None:
        data = gguf.quants.quantize(x, GGMLQuantizationType(kind.id))
    else:
        data = own(x.reshape(-1, kind.block_elements))
    return Stored(data.view(np.uint8).reshape(*x.shape[:-1], kind.row_bytes(x.shape[-1])), x.shape, kind.id)


def _iq4_nl(blocks: np.ndarray) -> np.ndarray:
    """f32 [n, 32] -> u8 [n, 18]: f16 scale, then nibbles of elements j and j + 16 in byte j."""
    values = np.array(gguf.quants.IQ4_NL.kvalues, np.float32)  # [16]
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 113).astype(np.float16)  # 113 is the largest positive value
    d = scale.astype(np.float32)
    unit = np.divide(blocks, d, out=np.zeros_like(blocks), where=d > 0)
    codes = np.abs(unit[:, :, None] - values).argmin(axis=2).astype(np.uint8)  # [n, 32]
    return np.concatenate([scale.view(np.uint8), codes[:, :16] | codes[:, 16:] << 4], axis=1)


def _q2_0(blocks: np.ndarray) -> np.ndarray:
    """f32 [n, 64] -> u8 [n, 18]: f16 scale, four 2-bit codes a byte, low bits first; value = (code - 1) * scale."""
    scale = np.sqrt(np.mean(blocks**2, axis=1, keepdims=True)).astype(np.float16)  # about the best for normal values
    d = scale.astype(np.float32)
    unit = np.divide(blocks, d, out=np.zeros_like(blocks), where=d > 0)
    codes = (np.clip(np.rint(unit), -1, 2) + 1).astype(np.uint8).reshape(-1, 16, 4)
    packed = codes[..., 0] | codes[..., 1] << 2 | codes[..., 2] << 4 | codes[..., 3] << 6  # [n, 16]
    return np.concatenate([scale.view(np.uint8), packed], axis=1)

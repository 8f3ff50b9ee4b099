"""How much memory a matrix takes in each format on the card, and what its kernels are specialised with.

The same table as the typedefs of kernels/formats.cuh, which a test compares. Knows shapes, no addresses.
"""

from dataclasses import dataclass
from math import prod
from types import MappingProxyType

FLOAT_BYTES = MappingProxyType({"F32": 4, "F16": 2, "BF16": 2})
_BORDER = 256  # bytes: where planes start
_CHUNK = 64  # elements


@dataclass(frozen=True)
class Layout:
    """Bytes of a format's planes. Sizes of codes are a chunk, those of scales `scale_unit` elements, of floats 256."""

    main: int
    second: int
    scale_unit: int
    scales: int
    floats: int
    activation_block: int  # elements that share the scale of an activation
    weighted: bool = False  # activations come with f16(scale * sum)

    @property
    def terms_a_chunk(self) -> float:
        """Floats that a chunk adds to a row's sum."""
        return {256: 0.25, 64: 4, 32: 2}[self.scale_unit]

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Memory of one matrix [rows, columns]."""
        chunks = chunks_of(columns)
        units = chunks * _CHUNK // self.scale_unit if self.scale_unit < 256 else columns // 256
        planes = (chunks * self.main, chunks * self.second, units * self.scales, columns // 256 * self.floats)
        return sum(-(-rows * plane // _BORDER) * _BORDER for plane in planes)

    def rounded_bytes(self, columns: int) -> int:
        """Memory of one token's activations, rounded as the format asks for them (kernels/rounding.cuh)."""
        chunks = chunks_of(columns)
        scales = -(-chunks * _CHUNK // self.activation_block)
        return chunks * 80 + (scales * 4 + 15) // 16 * 16 + ((chunks * 8 + 8) // 16 * 16 if self.weighted else 0)


def chunks_of(columns: int) -> int:
    """Chunks of a row."""
    return -(-columns // _CHUNK)


def _narrow(main: int, second: int, scales: int, *, unit: int = 32, weighted: bool = False) -> Layout:
    return Layout(main, second, unit, scales, 0, 32, weighted)


def _wide(main: int, second: int, scales: int, floats: int) -> Layout:
    return Layout(main, second, 256, scales, floats, 256)


LAYOUTS = MappingProxyType({
    "Q4_0": _narrow(32, 0, 2), "Q4_1": _narrow(32, 0, 4, weighted=True), "Q5_0": _narrow(32, 8, 2),
    "Q5_1": _narrow(32, 8, 4, weighted=True), "Q8_0": _narrow(64, 0, 2), "IQ4_NL": _narrow(32, 0, 2),
    "MXFP4": _narrow(32, 0, 1), "NVFP4": _narrow(32, 0, 4, unit=64), "Q2_0": _narrow(16, 0, 2),
    "Q4_K": _wide(32, 0, 16, 0), "Q5_K": _wide(32, 8, 16, 0), "Q6_K": _wide(32, 16, 16, 2), "Q2_K": _wide(16, 0, 16, 4),
    "Q3_K": _wide(16, 8, 16, 2), "IQ4_XS": _wide(32, 0, 8, 2), "TQ1_0": _wide(16, 0, 0, 2), "TQ2_0": _wide(16, 0, 0, 2)})


def tensor_bytes(name: str, shape: tuple[int, ...]) -> int:
    """Memory of a tensor [..., rows, columns]: each matrix on its own."""
    if name in FLOAT_BYTES:
        return prod(shape) * FLOAT_BYTES[name]
    return prod(shape[:-2]) * LAYOUTS[name].matrix_bytes(shape[-2], shape[-1])


def held(columns: int) -> int:
    """Blocks of 256 elements that each of a block's eight warps has in registers (kernels/rounding.cuh)."""
    return -(-columns // 2048)

"""Block formats: how many elements share how many bytes, by ggml type id and by name.

The gguf package's table, and the two types that its releases may lack. Importing this imports that package (0.1 s).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gguf.constants import GGML_QUANT_SIZES

from engine.errors import BadModel


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One storage format; an element-wise type such as F32 is a block of one element."""

    id: int
    name: str
    block_elements: int
    block_bytes: int

    def row_bytes(self, n_elements: int) -> int:
        """Bytes of a row; the row must be whole blocks."""
        if n_elements % self.block_elements:
            raise BadModel(f"a {self.name} row of {n_elements} elements is not whole blocks of {self.block_elements}")
        return n_elements // self.block_elements * self.block_bytes


def _table() -> Mapping[int | str, BlockFormat]:
    formats = [BlockFormat(int(kind), kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()]
    extra = [BlockFormat(41, "Q1_0", 128, 18), BlockFormat(42, "Q2_0", 64, 18)]
    known = {f.id for f in formats}
    formats += [f for f in extra if f.id not in known]
    return MappingProxyType({key: f for f in formats for key in (f.id, f.name)})


FORMATS: Mapping[int | str, BlockFormat] = _table()


def format_of(type_id: int) -> BlockFormat:
    """The format of a ggml type id."""
    found = FORMATS.get(type_id)
    if found is None:
        raise BadModel(f"the ggml type id {type_id} is unknown")
    return found

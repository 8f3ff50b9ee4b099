"""GGUF files: metadata, the tensor table, mapped tensors, block formats. Nothing here computes or imports numba.

`open_model` and the format table are loaded when first asked for: they import numpy and the gguf package, which
reading metadata does not need.
"""

from typing import TYPE_CHECKING, Any

from engine.gguf.cursor import GGUFError
from engine.gguf.reader import ALL, ArrayStub, Metadata, read_metadata

if TYPE_CHECKING:
    from engine.gguf.formats import FORMATS, BlockFormat, format_of
    from engine.gguf.model_files import PLE_TABLE, ModelFiles, Tensor, open_model

__all__ = [
    "ALL",
    "FORMATS",
    "PLE_TABLE",
    "ArrayStub",
    "BlockFormat",
    "GGUFError",
    "Metadata",
    "ModelFiles",
    "Tensor",
    "format_of",
    "open_model",
    "read_metadata",
]


def __getattr__(name: str) -> Any:
    if name in ("FORMATS", "BlockFormat", "format_of"):
        from engine.gguf import formats as module
    elif name in ("PLE_TABLE", "ModelFiles", "Tensor", "open_model"):
        from engine.gguf import model_files as module
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)

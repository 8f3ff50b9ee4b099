"""Writing a GGUF file in one call, atomically: metadata as plain Python values, tensors as arrays or stored blocks.

Owns the choice of value types. A file appears under its name only when it is whole. Used by pack builders and tools,
never by the engine or the gateway.
"""

import contextlib
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGUFValueType, GGUFWriter

_TYPES = {
    "u8": GGUFValueType.UINT8,
    "i8": GGUFValueType.INT8,
    "u16": GGUFValueType.UINT16,
    "i16": GGUFValueType.INT16,
    "u32": GGUFValueType.UINT32,
    "i32": GGUFValueType.INT32,
    "u64": GGUFValueType.UINT64,
    "i64": GGUFValueType.INT64,
    "f32": GGUFValueType.FLOAT32,
    "f64": GGUFValueType.FLOAT64,
    "bool": GGUFValueType.BOOL,
    "string": GGUFValueType.STRING,
}


class Typed(NamedTuple):
    """A metadata value whose type is not the one a plain value gets; for a list, the type of its elements."""

    value: Any
    type: str  # as engine.gguf names them: "u64", "i32", …


class Stored(NamedTuple):
    """A tensor as its file bytes."""

    data: np.ndarray  # uint8 [*shape[:-1], row_bytes]
    shape: tuple[int, ...]  # numpy order, in elements
    type_id: int  # ggml type


def write_gguf(
    path: Path, architecture: str, *, metadata: Mapping[str, Any], tensors: Mapping[str, np.ndarray | Stored]
) -> None:
    """Write one file. Plain ints become u32 (lists: i32), floats f32; float arrays are stored as they are."""
    logging.getLogger("gguf.gguf_writer").setLevel(logging.WARNING)  # it announces every file it writes
    descriptor, scratch = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.parent)
    os.close(descriptor)
    try:
        writer = GGUFWriter(scratch, architecture)
        for key, value in metadata.items():
            if key != "general.architecture":  # the writer adds it
                _add_value(writer, key, value)
        for name, tensor in tensors.items():
            if isinstance(tensor, Stored):
                # As int8 with a shape of its own: the writer's table of byte shapes lacks the newest types.
                data = np.ascontiguousarray(tensor.data).view(np.int8)
                writer.add_tensor(name, data, raw_shape=tensor.shape, raw_dtype=tensor.type_id)
            else:
                writer.add_tensor(name, np.ascontiguousarray(tensor))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        Path(scratch).chmod(0o644)
        Path(scratch).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(scratch).unlink()
        raise


def _add_value(writer: GGUFWriter, key: str, value: Any) -> None:
    kind = None
    if isinstance(value, Typed):
        value, kind = value
    if isinstance(value, list):
        writer.add_key_value(key, value, GGUFValueType.ARRAY, _TYPES[kind or _plain_type(value[0], "i32")])
    else:
        writer.add_key_value(key, value, _TYPES[kind or _plain_type(value, "u32")])


def _plain_type(value: Any, integer: str) -> str:
    if isinstance(value, bool):
        return "bool"
    return {int: integer, float: "f32", str: "string"}[type(value)]

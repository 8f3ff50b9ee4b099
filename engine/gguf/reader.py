"""The header of one GGUF file (version 2 and 3, little-endian): metadata and tensor table, nothing of the data.

Array values are stepped over unless asked for, so that a vocabulary costs a walk and no memory. Imports neither
numpy nor the gguf package: the gateway reads metadata with this alone. Any thread; the map belongs to the caller.
"""

import mmap
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.gguf.cursor import Cursor, GGUFError, map_file, printable

ALL = ("*",)  # for `arrays`: decode every array

_STRING, _ARRAY = 8, 9
_SCALARS = {  # value type id -> name, struct code
    0: ("u8", "B"), 1: ("i8", "b"), 2: ("u16", "H"), 3: ("i16", "h"), 4: ("u32", "I"), 5: ("i32", "i"),
    6: ("f32", "f"), 7: ("bool", "?"), 10: ("u64", "Q"), 11: ("i64", "q"), 12: ("f64", "d"),
}  # fmt: skip
_U64 = struct.Struct("<Q")
_LONGEST_KEY = 65535  # the GGUF specification's bound
_LONGEST_NAME = 63  # ggml keeps names in 64 bytes with the final zero
_MOST_DIMENSIONS = 4
_LEAST_PAIR_BYTES = 8 + 1 + 4 + 1  # key length, one letter, type, one byte of value
_LEAST_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8  # name length, one letter, dimension count, type, offset
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class ArrayStub:
    """An array value that was not decoded: its element type, its length and where its elements begin in the file."""

    type: str
    length: int
    offset: int


class Metadata(Mapping[str, Any]):
    """Key-value pairs of one file: int, float, bool, str, list (a decoded array) or ArrayStub."""

    def __init__(self, path: Path, values: dict[str, Any]):
        self.path = path
        self._values = values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def need(self, key: str, kind: type) -> Any:
        """The value of a key that must be there and be of `kind` (an int may stand for a float, a bool for neither)."""
        value = self._values.get(key)
        if value is None:
            raise GGUFError(self.path, "the metadata lacks this key", field=key)
        if kind is float and type(value) is int:
            return float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise GGUFError(self.path, f"should be {kind.__name__}, is {type(value).__name__}", field=key)
        return value


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of the tensor table as it stands in the file."""

    name: str
    dimensions: tuple[int, ...]  # fastest first, as the file has them
    type_id: int
    data_offset: int  # from the start of the data section
    offset: int  # of this row in the file, for errors


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before the tensor table, and where the table begins."""

    metadata: Metadata
    n_tensors: int
    tensors_offset: int


def read_metadata(path: str | Path, arrays: Collection[str] = ()) -> Metadata:
    """Metadata of a GGUF file. Arrays whose key is not in `arrays` (or ALL) come as ArrayStub."""
    path = Path(path)
    with map_file(path) as buffer:
        return read_header(buffer, path, arrays).metadata


def read_header(buffer: mmap.mmap | bytes, path: Path, arrays: Collection[str] = ()) -> Header:
    """Parse the start of a file up to its tensor table."""
    cursor = Cursor(buffer, path)
    start = cursor.need(4, "magic")
    if (magic := bytes(buffer[start : start + 4])) != b"GGUF":
        raise cursor.error(f"begins with {magic!r} in place of b'GGUF': not a GGUF file", "magic", 0)
    version = cursor.u32("version")
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        what = "is big-endian" if swapped in (1, 2, 3) else f"has GGUF version {version}"
        raise cursor.error(f"{what}; versions 2 and 3, little-endian, are supported", "version", 4)
    n_tensors = cursor.count("tensor count", _LEAST_TENSOR_BYTES)
    n_pairs = cursor.count("metadata count", _LEAST_PAIR_BYTES)
    values: dict[str, Any] = {}
    for i in range(n_pairs):
        start = cursor.position
        key = cursor.string(f"key {i}", longest=_LONGEST_KEY)
        if not key:
            raise cursor.error("is empty", f"key {i}", start)
        field = printable(key)
        if key in values:
            raise cursor.error("occurs twice", field, start)
        values[key] = _read_value(cursor, field, wanted=key in arrays or ALL[0] in arrays)
    if n_tensors * _LEAST_TENSOR_BYTES > cursor.end - cursor.position:
        what = f"{n_tensors} tensors are declared, {cursor.end - cursor.position} bytes are left for them"
        raise cursor.error(what, "tensor count")
    return Header(Metadata(path, values), n_tensors, cursor.position)


def read_array(buffer: mmap.mmap | bytes, path: Path, key: str, stub: ArrayStub) -> list[Any]:
    """Decode an array that `read_header` stepped over, from the same file."""
    return _read_elements(Cursor(buffer, path, stub.offset), stub.type, stub.length, printable(key))


def read_tensor_table(buffer: mmap.mmap | bytes, path: Path, header: Header) -> tuple[list[TensorInfo], int]:
    """The tensor table, and the offset of the data section behind it."""
    alignment = header.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        shown = printable(repr(alignment))
        raise GGUFError(path, f"should be a power of two, is {shown}", field="general.alignment")
    cursor = Cursor(buffer, path, header.tensors_offset)
    infos: list[TensorInfo] = []
    seen: set[str] = set()
    for i in range(header.n_tensors):
        info = _read_tensor_info(cursor, i)
        if info.name in seen:
            raise cursor.error("occurs twice", f"tensor {printable(info.name)}", info.offset)
        if info.data_offset % alignment:
            what = f"its data offset {info.data_offset} is not a multiple of the alignment {alignment}"
            raise cursor.error(what, f"tensor {printable(info.name)}", info.offset)
        seen.add(info.name)
        infos.append(info)
    return infos, -(-cursor.position // alignment) * alignment


def _read_tensor_info(cursor: Cursor, index: int) -> TensorInfo:
    start = cursor.position
    name = cursor.string(f"name of tensor {index}", longest=_LONGEST_NAME)
    field = f"tensor {printable(name)}"
    if not name:
        raise cursor.error("is empty", f"name of tensor {index}", start)
    at = cursor.position
    n_dimensions = cursor.u32(field)
    if n_dimensions > _MOST_DIMENSIONS:
        raise cursor.error(f"has {n_dimensions} dimensions; at most {_MOST_DIMENSIONS} are allowed", field, at)
    at = cursor.position
    dimensions = tuple(cursor.u64(field) for _ in range(n_dimensions)) or (1,)
    product = 1
    for size in dimensions:
        product *= size
        if not 0 < product < 1 << 63:
            raise cursor.error(f"has the impossible dimensions {dimensions}", field, at)
    return TensorInfo(name, dimensions, cursor.u32(field), cursor.u64(field), start)


def _read_value(cursor: Cursor, field: str, *, wanted: bool) -> Any:
    at = cursor.position
    type_id = cursor.u32(field)
    if type_id == _STRING:
        return cursor.string(field)
    if type_id in _SCALARS:
        unpack = struct.Struct("<" + _SCALARS[type_id][1])
        return unpack.unpack_from(cursor.buffer, cursor.need(unpack.size, field))[0]
    if type_id != _ARRAY:
        raise cursor.error(f"has the unknown value type {type_id}", field, at)
    at = cursor.position
    element = cursor.u32(field)
    if element == _STRING:
        kind, least_bytes = "string", 8
    elif element in _SCALARS:
        kind, code = _SCALARS[element]
        least_bytes = struct.calcsize("<" + code)
    else:
        what = "is an array of arrays" if element == _ARRAY else f"is an array of the unknown type {element}"
        raise cursor.error(what, field, at)
    length = cursor.count(field, least_bytes)
    if wanted:
        return _read_elements(cursor, kind, length, field)
    stub = ArrayStub(kind, length, cursor.position)
    if kind == "string":
        _walk_strings(cursor, length, field, None)
    else:
        cursor.need(length * least_bytes, field)
    return stub


def _read_elements(cursor: Cursor, kind: str, length: int, field: str) -> list[Any]:
    if kind == "string":
        strings: list[str] = []
        _walk_strings(cursor, length, field, strings)
        return strings
    code = next(code for name, code in _SCALARS.values() if name == kind)
    layout = struct.Struct(f"<{length}{code}")
    return list(layout.unpack_from(cursor.buffer, cursor.need(layout.size, field)))


def _walk_strings(cursor: Cursor, length: int, field: str, out: list[str] | None) -> None:
    """Step over strings, decoding them into `out` if given. The one hot loop here: 500,000 turns in a large file."""
    buffer, position, end, unpack = cursor.buffer, cursor.position, cursor.end, _U64.unpack_from
    last = end - 8
    for i in range(length):
        start = position
        if start <= last:
            position = start + 8 + unpack(buffer, start)[0]
        if position > end or start > last:
            cursor.position = start
            raise cursor.error(f"element {i} of {length} does not fit into the file: truncated or damaged", field)
        if out is not None:
            out.append(str(buffer[start + 8 : position], "utf-8", "backslashreplace"))
    cursor.position = position

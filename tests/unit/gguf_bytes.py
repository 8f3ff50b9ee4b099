"""Builds GGUF files byte by byte, right and wrong ones, for the tests of the reader."""

import struct
from collections.abc import Iterable

MAGIC = b"GGUF"
U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10


def text(value: bytes | str) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(value)) + value


def pair(key: bytes | str, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def u32_pair(key: str, value: int) -> bytes:
    return pair(key, U32, struct.pack("<I", value))


def text_pair(key: str, value: bytes | str) -> bytes:
    return pair(key, STRING, text(value))


def array_pair(key: str, kind: int, length: int, payload: bytes) -> bytes:
    return pair(key, ARRAY, struct.pack("<IQ", kind, length) + payload)


def row(
    name: bytes | str, dimensions: Iterable[int] = (4,), *, kind: int = 0, offset: int = 0, n: int | None = None
) -> bytes:
    sizes = list(dimensions)
    head = text(name) + struct.pack("<I", len(sizes) if n is None else n)
    return head + b"".join(struct.pack("<q", size) for size in sizes) + struct.pack("<IQ", kind, offset)


def build(
    pairs: Iterable[bytes] = (),
    rows: Iterable[bytes] = (),
    *,
    data: bytes = b"",
    version: bytes | int = 3,
    n_pairs: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    pairs, rows = list(pairs), list(rows)
    out = MAGIC + (version if isinstance(version, bytes) else struct.pack("<I", version))
    out += struct.pack("<Q", len(rows) if n_tensors is None else n_tensors)
    out += struct.pack("<Q", len(pairs) if n_pairs is None else n_pairs)
    out += b"".join(pairs) + b"".join(rows)
    return out + bytes(-len(out) % alignment) + data if rows else out

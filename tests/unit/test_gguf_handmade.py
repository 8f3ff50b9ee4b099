"""Broken headers, one kind each: a clear error that names file, field and offset, and next to no memory."""

import struct
import tracemalloc
from pathlib import Path

import pytest
from gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    MAGIC,
    STRING,
    U32,
    U64,
    array_pair,
    build,
    pair,
    row,
    text,
    text_pair,
    u32_pair,
)

from engine.gguf import ALL, GGUFError, open_model, read_metadata

HUGE = (1 << 64) - 1
GIB = 1 << 30
ARCH = text_pair("general.architecture", "llama")

# name: (bytes, words of the error, field, offset or None)
HEADERS = {
    "empty file": (b"", "is empty", "magic", 0),
    "three bytes": (b"GGU", "truncated", "magic", 0),
    "bad magic": (b"FUGG" + build()[4:], "not a GGUF file", "magic", 0),
    "version 0": (build(version=0), "GGUF version 0", "version", 4),
    "version 1": (build(version=1), "GGUF version 1", "version", 4),
    "future version": (build(version=4), "GGUF version 4", "version", 4),
    "byte-swapped": (build(version=b"\0\0\0\3"), "big-endian", "version", 4),
    "version cut": (MAGIC + b"\3\0", "needs 4 bytes where 2", "version", 4),
    "n_tensors negative": (build(n_tensors=HUGE), "items of at least", "tensor count", 8),
    "n_tensors huge": (build(n_tensors=GIB), "items of at least", "tensor count", 8),
    "n_kv negative": (build(n_pairs=HUGE), "items of at least", "metadata count", 16),
    "n_kv huge": (build(n_pairs=GIB), "items of at least", "metadata count", 16),
    "n_kv one too many": (build([ARCH], n_pairs=2), "", None, None),
}
KEYS = {
    "key size": (build([struct.pack("<Q", HUGE) + b"my_key" + bytes(16)]), "at most 65535", "key 0", 24),
    "key size past the end": (
        build([struct.pack("<Q", 60000) + b"my_key" + bytes(16)]),
        "where 22 are left",
        "key 0",
        32,
    ),
    "empty key": (build([pair("", U32, bytes(4))]), "is empty", "key 0", 24),
    "duplicate key": (build([u32_pair("a", 1), u32_pair("b", 1), u32_pair("a", 1)]), "occurs twice", "a", 24 + 34),
    "bad type": (build([pair("key", 13, bytes(16))]), "unknown value type 13", "key", 24 + 11),
    "bad array type": (build([array_pair("key", 99, 1, bytes(16))]), "unknown type 99", "key", 24 + 15),
    "array of arrays": (build([array_pair("key", ARRAY, 1, bytes(16))]), "array of arrays", "key", 24 + 15),
    "giant string": (
        build([pair("key", STRING, struct.pack("<Q", GIB) + bytes(100))]),
        f"needs {GIB} bytes",
        "key",
        None,
    ),
    "string length -1": (build([pair("key", STRING, struct.pack("<Q", HUGE))]), "needs", "key", None),
    "giant numeric array": (build([array_pair("key", F32, GIB, bytes(100))]), f"{GIB} items", "key", 24 + 19),
    "giant string array": (build([array_pair("key", STRING, GIB, bytes(100))]), f"{GIB} items", "key", 24 + 19),
    "array length -1": (build([array_pair("key", BOOL, HUGE, b"")]), "items of at least 1", "key", 24 + 19),
    "array overflow": (build([array_pair("key", U64, 1 << 61, b"")]), "items of at least 8", "key", 24 + 19),
    "giant element": (
        build([array_pair("key", STRING, 3, text("a") + struct.pack("<Q", GIB) + bytes(40))]),
        "element 1 of 3 does not fit",
        "key",
        24 + 27 + 9,
    ),
    "cut in the last element": (
        build([array_pair("key", STRING, 2, text("abcdefgh") + b"\1\0\0\0")]),
        "element 1 of 2",
        "key",
        24 + 27 + 16,
    ),
}
FLOATS = bytes(16)  # a tensor of four


def _one(*rows: bytes, pairs: tuple[bytes, ...] = (ARCH,), data: bytes = FLOATS) -> bytes:
    return build(pairs, rows, data=data)


BASE = len(build([ARCH]))  # where the tensor table begins
NAMED = BASE + 8 + 1  # behind the name of a tensor "t"
TENSORS = {
    "alignment 13": (
        _one(row("t"), pairs=(u32_pair("general.alignment", 13),)),
        "power of two",
        "general.alignment",
        None,
    ),
    "alignment 0": (
        _one(row("t"), pairs=(u32_pair("general.alignment", 0),)),
        "power of two",
        "general.alignment",
        None,
    ),
    "alignment is a text": (
        _one(row("t"), pairs=(text_pair("general.alignment", "32"),)),
        "power of two",
        "general.alignment",
        None,
    ),
    "name of 64": (_one(row("n" * 64)), "at most 63", "name of tensor 0", BASE),
    "giant name": (_one(struct.pack("<Q", GIB) + bytes(64)), "at most 63", "name of tensor 0", BASE),
    "empty name": (_one(row("")), "is empty", "name of tensor 0", BASE),
    "five dimensions": (_one(row("t", (1, 1, 1, 1, 1))), "has 5 dimensions", "tensor t", NAMED),
    "2³²-1 dimensions": (_one(row("t", (1,), n=0xFFFFFFFF)), "dimensions", "tensor t", NAMED),
    "zero dimension": (_one(row("t", (4, 0))), "impossible dimensions", "tensor t", NAMED + 4),
    "negative dimension": (_one(row("t", (-1,))), "impossible dimensions", "tensor t", NAMED + 4),
    "too many elements": (_one(row("t", (1 << 33, 1 << 33))), "impossible dimensions", "tensor t", NAMED + 4),
    "too many bytes": (_one(row("t", ((1 << 62) + 4,))), "bytes are missing", "tensor t", BASE),
    "unknown type": (_one(row("t", kind=200)), "type id 200 is unknown", "tensor t", BASE),
    "removed type": (_one(row("t", kind=4)), "type id 4 is unknown", "tensor t", BASE),
    "row of half a block": (_one(row("t", (48,), kind=2)), "not whole blocks of 32", "tensor t", BASE),
    "offset off the grid": (_one(row("t", offset=1)), "multiple of the alignment 32", "tensor t", BASE),
    "offset -1": (_one(row("t", offset=HUGE)), "multiple of the alignment", "tensor t", BASE),
    "offset huge": (_one(row("t", offset=1 << 63)), "bytes are missing", "tensor t", BASE),
    "duplicate tensor": (_one(row("t"), row("t", offset=32), data=bytes(64)), "occurs twice", "tensor t", BASE + 33),
    "overlap": (_one(row("t", (16,)), row("u", offset=32), data=bytes(64)), "overlaps t", "tensor u", None),
    "not enough data": (_one(row("t"), data=bytes(15)), "1 bytes are missing", "tensor t", BASE),
    "second tensor cut": (
        _one(row("t"), row("u", offset=32), data=bytes(40)),
        "8 bytes are missing",
        "tensor u",
        BASE + 33,
    ),
    "row cut": (build([ARCH], [row("t")])[: BASE + 30], "needs 8 bytes where", "tensor t", BASE + 25),
    "table missing": (build([ARCH], n_tensors=2), "2 tensors are declared", "tensor count", None),
}


def _check(path: Path, call, words: str, field: str | None, offset: int | None) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(GGUFError) as caught:
            call()
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    error = caught.value
    assert peak_bytes < 1_000_000
    assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
    assert words in str(error)
    assert error.code == "bad_model" and error.fatal
    if field is not None:
        assert error.field == field and f"field {field}" in str(error)
    if offset is not None:
        assert error.offset == offset and f"byte {offset}" in str(error)


@pytest.mark.parametrize("name", [*HEADERS, *KEYS])
@pytest.mark.parametrize("arrays", [(), ALL], ids=["skip", "decode"])
def test_broken_metadata(tmp_path: Path, name: str, arrays: tuple[str, ...]) -> None:
    content, words, field, offset = (HEADERS | KEYS)[name]
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    _check(path, lambda: read_metadata(path, arrays), words, field, offset)
    if arrays == ():
        _check(path, lambda: open_model(path), words, field, offset)


@pytest.mark.parametrize("name", TENSORS)
def test_broken_tensor_table(tmp_path: Path, name: str) -> None:
    content, words, field, offset = TENSORS[name]
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)

    _check(path, lambda: open_model(path), words, field, offset)


@pytest.mark.parametrize("alignment", [1, 8, 256])
def test_other_alignments(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "m.gguf"
    rows = [row("t", (3,)), row("u", (2, 2), offset=-(-12 // alignment) * alignment)]
    data = (bytes(range(12)) + bytes(-12 % alignment)) + bytes(range(100, 116))
    path.write_bytes(build([u32_pair("general.alignment", alignment)], rows, data=data, alignment=alignment))
    with open_model(path) as model:
        assert model.tensors["t"].data.tobytes() == bytes(range(12))
        assert model.tensors["u"].data.tobytes() == bytes(range(100, 116))
        assert model.tensors["u"].data.shape == (2, 8)


def test_version_2_reads_like_3(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build([ARCH, u32_pair("n", 7)], version=2))
    assert dict(read_metadata(path)) == {"general.architecture": "llama", "n": 7}


def test_things_that_are_no_file(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "not a regular file"), (tmp_path / "none.gguf", "No such file")):
        with pytest.raises(GGUFError, match=words):
            read_metadata(path)
        with pytest.raises(GGUFError, match=words):
            open_model(path)


def test_hostile_names_stay_on_one_short_line(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for key in (b"a\nERR internal\x1b[2J", b"\xff\xfe\x80", b"k" * 60000, "\u2028\u202e".encode()):
        path.write_bytes(build([pair(key, 77, bytes(8))]))
        with pytest.raises(GGUFError) as caught:
            read_metadata(path)
        message = str(caught.value)
        assert message.isprintable() and len(message) < 600

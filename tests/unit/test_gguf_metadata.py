"""Metadata values: every type, arrays as stubs or decoded, and a large vocabulary that costs a walk, not memory."""

import json
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from gguf_bytes import BOOL, F32, STRING, U32, array_pair, build, pair, text, text_pair, u32_pair

from engine.gguf import ALL, ArrayStub, GGUFError, open_model, read_metadata

SCALARS = {  # type id: (struct code, value)
    0: ("B", 200), 1: ("b", -3), 2: ("H", 60000), 3: ("h", -30000), 4: ("I", 4_000_000_000), 5: ("i", -2_000_000_000),
    6: ("f", 0.5), 7: ("?", True), 10: ("Q", 1 << 63), 11: ("q", -(1 << 62)), 12: ("d", 1e300),
}  # fmt: skip


def test_scalars(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    pairs = [pair(f"k{kind}", kind, struct.pack("<" + code, value)) for kind, (code, value) in SCALARS.items()]
    path.write_bytes(build([*pairs, text_pair("text", "zwölf ✓"), text_pair("none", "")]))
    found = read_metadata(path)
    assert dict(found) == {f"k{kind}": value for kind, (_, value) in SCALARS.items()} | {"text": "zwölf ✓", "none": ""}
    assert type(found["k7"]) is bool and type(found["k4"]) is int


@pytest.mark.parametrize("kind", SCALARS)
def test_arrays_of_numbers(tmp_path: Path, kind: int) -> None:
    path = tmp_path / "m.gguf"
    code, value = SCALARS[kind]
    values = [value, type(value)(0), value]
    path.write_bytes(build([array_pair("a", kind, 3, struct.pack(f"<3{code}", *values)), u32_pair("after", 9)]))
    stub = read_metadata(path)["a"]
    assert isinstance(stub, ArrayStub) and stub.length == 3
    assert read_metadata(path)["after"] == 9
    assert read_metadata(path, arrays=("a",))["a"] == values
    assert read_metadata(path, arrays=ALL)["a"] == values
    with open_model(path) as model:
        assert model.array("a") == values


def test_arrays_of_texts_and_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    words = [b"one", b"", b"\xe2\x82\xac", b"\xff\x80"]
    path.write_bytes(
        build([array_pair("a", STRING, 4, b"".join(map(text, words))), array_pair("none", STRING, 0, b"")])
    )
    assert read_metadata(path, arrays=("a",))["a"] == ["one", "", "€", "\\xff\\x80"]
    assert read_metadata(path)["a"].type == "string"
    assert read_metadata(path, arrays=ALL)["none"] == []


def test_need_checks_presence_and_type(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    flags = [pair("flag", BOOL, b"\1"), pair("eps", F32, struct.pack("<f", 0.5))]
    path.write_bytes(build([u32_pair("n", 3), *flags, array_pair("list", U32, 1, bytes(4))]))
    found = read_metadata(path)
    assert (found.need("n", int), found.need("n", float), found.need("flag", bool)) == (3, 3.0, True)
    for key, kind in (("absent", int), ("flag", int), ("n", str), ("n", bool), ("eps", int), ("list", list)):
        with pytest.raises(GGUFError) as caught:
            found.need(key, kind)
        assert f"field {key}" in str(caught.value) and str(path) in str(caught.value)


def test_array_of_a_model_that_is_not_there_or_no_array(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build([u32_pair("n", 3)]))
    with open_model(path) as model:
        assert model.array("absent", []) == []
        for key in ("absent", "n"):
            with pytest.raises(GGUFError, match=f"field {key}"):
                model.array(key)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocabulary of 248,320 tokens and as many merges: 10 MB of metadata."""
    path = tmp_path_factory.mktemp("large") / "large.gguf"
    n = 248_320
    tokens = b"".join(text(b"token%d" % i) for i in range(n))
    merges = b"".join(text(b"to ken%d" % i) for i in range(n))
    kinds = array_pair("tokenizer.ggml.token_type", 5, n, bytes(4 * n))
    arrays = [array_pair("tokenizer.ggml.tokens", STRING, n, tokens), kinds]
    arrays.append(array_pair("tokenizer.ggml.merges", STRING, n, merges))
    path.write_bytes(build([text_pair("general.architecture", "llama"), *arrays, u32_pair("last", 1)]))
    return path


def test_large_vocabulary_is_stepped_over_without_memory(large: Path) -> None:
    tracemalloc.start()
    try:
        found = read_metadata(large)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000
    assert found["tokenizer.ggml.tokens"].length == 248_320
    assert found["last"] == 1


def test_large_vocabulary_decodes_what_is_asked_for(large: Path) -> None:
    found = read_metadata(large, arrays=("tokenizer.ggml.tokens",))
    assert found["tokenizer.ggml.tokens"][-1] == "token248319"
    assert isinstance(found["tokenizer.ggml.merges"], ArrayStub)


def test_reading_metadata_imports_nothing_heavy(large: Path) -> None:
    code = (
        "import sys, json; from engine.gguf import read_metadata; read_metadata(sys.argv[1])\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))\n"
        "from engine.gguf import open_model; print(json.dumps('numba' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, large], capture_output=True, text=True, check=True)
    modules, numba = map(json.loads, done.stdout.splitlines())
    assert not {"numpy", "gguf", "numba", "cupy"} & set(modules)
    assert not numba

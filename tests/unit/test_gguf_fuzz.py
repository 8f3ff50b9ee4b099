"""Any damage to a file gives a model or a GGUFError, never another exception, a crash or a large allocation."""

import struct
import tracemalloc
from pathlib import Path

import pytest
from gguf_bytes import BOOL, STRING, array_pair, build, pair, row, text, text_pair, u32_pair
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from engine.gguf import ALL, GGUFError, open_model, read_metadata

SEED = build(
    [
        text_pair("general.architecture", "llama"),
        u32_pair("general.alignment", 32),
        pair("flag", BOOL, b"\1"),
        array_pair("words", STRING, 3, text("a") + text("bc") + text("")),
        array_pair("numbers", 5, 4, struct.pack("<4i", 1, 2, 3, 4)),
    ],
    [row("first", (4, 2)), row("second.weight", (64, 3), kind=2, offset=32), row("third", (1,), offset=160)],
    data=bytes(range(164)),
)
NUMBERS = [0, 1, 2, 31, 33, 63, 64, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
NUMBERS += [1 << 61, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]

edits = st.one_of(
    st.tuples(st.just("byte"), st.integers(0, len(SEED) - 1), st.integers(0, 255)),
    st.tuples(st.just("u32"), st.integers(0, len(SEED) - 4), st.sampled_from(NUMBERS)),
    st.tuples(st.just("u64"), st.integers(0, len(SEED) - 8), st.sampled_from(NUMBERS)),
    st.tuples(st.just("cut"), st.integers(0, len(SEED)), st.just(0)),
    st.tuples(st.just("drop"), st.integers(0, len(SEED) - 1), st.integers(1, 40)),
    st.tuples(st.just("repeat"), st.integers(0, len(SEED) - 1), st.integers(1, 40)),
)


def _apply(content: bytes, edit: tuple[str, int, int]) -> bytes:
    kind, at, value = edit
    match kind:
        case "byte":
            return content[:at] + bytes([value]) + content[at + 1 :]
        case "u32":
            return content[:at] + struct.pack("<I", value & 0xFFFFFFFF) + content[at + 4 :]
        case "u64":
            return content[:at] + struct.pack("<Q", value) + content[at + 8 :]
        case "cut":
            return content[:at]
        case "drop":
            return content[:at] + content[at + value :]
        case _:
            return content[: at + value] + content[at:]


def test_the_seed_itself_reads(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(SEED)
    with open_model(path) as model:
        assert {name: tensor.shape for name, tensor in model.tensors.items()} == {
            "first": (2, 4),
            "second.weight": (3, 64),
            "third": (1,),
        }
        assert model.array("words") == ["a", "bc", ""] and model.array("numbers") == [1, 2, 3, 4]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "m.gguf"


@settings(max_examples=600, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(edits, min_size=1, max_size=4))
@example([("u64", 8, (1 << 64) - 1)])
@example([("u64", 16, 1 << 61)])
def test_damaged_files(path: Path, changes: list[tuple[str, int, int]]) -> None:
    content = SEED
    for change in changes:
        content = _apply(content, change)
    path.write_bytes(content)
    tracemalloc.start()
    try:
        for call in (lambda: read_metadata(path, ALL), lambda: open_model(path)):
            try:
                found = call()
            except GGUFError as error:
                assert str(error).startswith(f"{path}: ") and str(error).isprintable()
            else:
                if hasattr(found, "tensors"):
                    assert sum(int(tensor.data.sum()) for tensor in found.tensors.values()) >= 0  # all inside the map
                    found.close()
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()

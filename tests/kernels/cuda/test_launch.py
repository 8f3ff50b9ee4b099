"""Launches as data: fields of a kernel's struct from its source, arguments by name, memory that gets its address later."""

import struct

import numpy as np
import pytest

from engine.backend.cuda import launch as module
from engine.backend.cuda.launch import KERNELS, Buffer, Launch, kernel_fields
from engine.backend.cuda.toolchain import sources_digest
from engine.errors import Internal

SOURCE = """
#include "common.cuh"
struct ScaleArguments {
    const Window* window;
    const float *x, *y;  // [T]; not i64
    float* out;
    i64 rows, columns;   // sizes
    double scale;
};
struct OtherArguments {
    u8* a;
};
KERNEL(scale, 256, ScaleArguments) { }
KERNEL(scale_twice, 2 * WARPS, ScaleArguments) { }
KERNEL(other, 32, OtherArguments) { }
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "sample.cu").write_text(SOURCE)
    (tmp_path / "common.cuh").write_text("// a\n")
    monkeypatch.setattr(module, "KERNELS", tmp_path)
    kernel_fields.cache_clear()
    yield tmp_path
    kernel_fields.cache_clear()


def launch(**arguments) -> Launch:
    """A launch of `scale` with some arguments changed; `...` leaves one out."""
    held = Buffer("held", 64)
    held.address = 4096
    full = {"window": held, "x": held.at(16), "y": None, "out": 77, "rows": -3, "columns": 5, "scale": 0.5} | arguments
    return Launch("sample", (), "scale", (1, 1, 1), 32, 0, {name: value for name, value in full.items() if value is not ...})


def test_fields_come_from_the_source(folder):
    fields = (("window", "source"), ("x", "source"), ("y", "source"), ("out", "pointer"), ("rows", "integer"),
              ("columns", "integer"), ("scale", "real"))
    assert kernel_fields("sample") == {"scale": fields, "scale_twice": fields, "other": (("a", "pointer"),)}


def test_arguments_are_packed_in_the_order_of_the_struct(folder):
    assert launch().packed() == struct.pack("<QQQQqqd", 4096, 4112, 0, 77, -3, 5, 0.5)
    assert launch(scale=2).packed()[-8:] == struct.pack("<d", 2.0)
    assert launch(scale=np.float32(0.5)).packed() == launch().packed() == launch(columns=np.int32(5)).packed()
    assert launch(rows=True).packed()[32:40] == struct.pack("<q", 1)


@pytest.mark.parametrize(("arguments", "expected"), [
    ({"x": ...}, r"sample.scale: arguments \['x'\] are missing or unknown"),
    ({"z": 1}, r"arguments \['z'\] are missing or unknown"),
    ({"x": ..., "z": 1}, r"arguments \['x', 'z'\]"),
    ({"x": Buffer("later", 16)}, "x is not allocated"),
    ({"x": Buffer("later", 16).at(8)}, "x is not allocated"),
    ({"rows": 1.5}, "rows is 1.5, expected a number"),
    ({"rows": None}, "rows is None"),
    ({"rows": 1 << 63}, "rows is 9223372036854775808, expected a number"),
    ({"scale": Buffer("b", 16)}, "scale is .*, expected a number"),
    ({"x": 1.5}, "x is 1.5, expected an address"),
    ({"x": -1}, "x is -1, expected an address"),
])
def test_what_does_not_fit_is_refused(folder, arguments, expected):
    with pytest.raises(Internal, match=expected):
        launch(**arguments).packed()


def test_a_kernel_that_is_not_there(folder):
    with pytest.raises(Internal, match=r"sample.cu has no kernel scales"):
        Launch("sample", (), "scales", (1, 1, 1), 32, 0, {}).packed()


@pytest.mark.parametrize("field", ["int n;", "float x;", "u32 a, b;"])
def test_fields_of_other_sizes_are_refused(folder, field):
    (folder / "odd.cu").write_text(f"struct OddArguments {{\n    {field}\n}};\nKERNEL(odd, 32, OddArguments) {{ }}\n")
    with pytest.raises(Internal, match=r"OddArguments: a field of type .*; expected pointers, i64 and double"):
        kernel_fields("odd")


def test_a_struct_that_is_not_there(folder):
    (folder / "lost.cu").write_text("KERNEL(lost, 32, LostArguments) { }\n")
    with pytest.raises(Internal, match=r"lost.cu: no struct LostArguments"):
        kernel_fields("lost")


def test_a_buffer_grows_only_before_it_has_an_address():
    buffer = Buffer("rows", 16)
    buffer.grow(64)
    buffer.grow(32)
    assert buffer.n_bytes == 64 and buffer.at(8).address is None
    buffer.address = 4096
    buffer.grow(64)
    assert buffer.at(8).address == 4104
    with pytest.raises(Internal, match="rows: asked to grow after it was allocated"):
        buffer.grow(65)


def test_fields_of_all_our_kernels_can_be_read():
    for path in KERNELS.glob("*.cu"):
        assert kernel_fields(path.stem), path.name


def test_a_digest_covers_what_is_included(folder):
    before = sources_digest("sample", folder)
    assert sources_digest("sample", folder) == before
    (folder / "beside.cuh").write_text("// of no program\n")
    assert sources_digest("sample", folder) == before
    (folder / "common.cuh").write_text('#include "deep.cuh"\n')
    with_include = sources_digest("sample", folder)
    (folder / "deep.cuh").write_text("// b\n")
    assert len({before, with_include, sources_digest("sample", folder)}) == 3

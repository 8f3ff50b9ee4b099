"""The benchmark's model is fit for a benchmark, and a model that is not is refused."""

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from engine.gguf import open_model
from tools.bench_check import UnfitModel, examine
from tools.bench_model import Shape, write_bench_model
from tools.make_tiny_gguf import write_tiny

SHAPE = Shape(layers=2, width=256, heads=4, kv_heads=2, head_dim=64, experts=16, experts_used=4, ff=256, vocab=512,
              context=1024, mix="Q4_K_M")  # fmt: skip


def test_blocks_have_no_mean_and_the_wanted_deviation(tmp_path):
    write_bench_model(tmp_path / "a.gguf", SHAPE)
    with open_model(tmp_path / "a.gguf") as model:
        found = {}
        for tensor in model.tensors.values():
            if tensor.format.name in ("Q4_K", "Q6_K"):
                values = gguf.quants.dequantize(tensor.data, GGMLQuantizationType(tensor.format.id)).astype(np.float64)
                # values of one scale go together, 16 or more of them
                assert abs(values.mean()) < 5 * values.std() / np.sqrt(values.size / 16), tensor.name
                found[tensor.name.split(".")[-2], tensor.format.name] = values.std()
        minimum = model.tensors["blk.0.attn_q.weight"].data[:, :4].copy().view(np.float16)  # d, dmin of rows
    assert np.array_equal(minimum[:, 1], np.float16(7.5) * minimum[:, 0])
    for name in (("attn_q", "Q4_K"), ("ffn_up_exps", "Q4_K"), ("attn_v", "Q6_K"), ("output", "Q6_K")):
        assert found[name] == pytest.approx(SHAPE.width**-0.5, rel=0.05), name


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_bench_model(tmp_path / name, SHAPE, seed=3)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    write_bench_model(tmp_path / "c", SHAPE, seed=4)
    assert (tmp_path / "a").read_bytes() != (tmp_path / "c").read_bytes()


def test_tokens_spread_over_the_experts_and_the_residual_stays_small(tmp_path):
    write_bench_model(tmp_path / "a.gguf", SHAPE)
    report = examine(tmp_path / "a.gguf", tokens=512, workers=2)
    report.refuse_unfit()
    assert report.distinct_experts == [16, 16]
    assert 0.9 < report.residual_rms < 1.2


def test_a_residual_that_grows_and_a_dense_model_are_refused(tmp_path):
    grown = write_tiny(tmp_path / "grown.gguf", "qwen3moe")[0]
    with pytest.raises(UnfitModel, match=r"residual grows|experts"):
        examine(grown, tokens=64, workers=2).refuse_unfit()
    dense = write_tiny(tmp_path / "dense.gguf", "llama")[0]
    with pytest.raises(UnfitModel, match="no experts"):
        examine(dense, tokens=64, workers=2)

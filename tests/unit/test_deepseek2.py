"""What `deepseek2` files say of their attention and routers: the published sizes, both layouts, and what is refused."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from engine.config import EngineConfig
from engine.errors import BadModel
from engine.model.base import Hyper
from engine.model.layers.experts import scoring
from engine.model.layers.mla import mla_spec
from packs.manifest import resolve_model
from tools.make_tiny_gguf import write_model
from tools.random_model import random_model

LITE = {  # of DeepSeek-Coder-V2-Lite, older layout
    "attention.head_count": 16, "attention.key_length": 192, "attention.value_length": 128, "attention.kv_lora_rank": 512,
    "attention.layer_norm_rms_epsilon": 1e-6, "rope.dimension_count": 64, "rope.freq_base": 10000.0, "context_length": 163840,
    "rope.scaling.type": "yarn", "rope.scaling.factor": 40.0, "rope.scaling.original_context_length": 4096,
    "rope.scaling.yarn_log_multiplier": 0.0707}
NEWER = {"attention.key_length": 576, "attention.value_length": 512, "attention.key_length_mla": 192,
         "attention.value_length_mla": 128, "attention.head_count_kv": 1}


def hyper(**values) -> Hyper:
    metadata = {f"deepseek2.{key}": value for key, value in values.items()}
    return Hyper(SimpleNamespace(metadata={"general.architecture": "deepseek2", **metadata}))


def test_both_layouts_give_the_published_attention():
    spec = mla_spec(hyper(**LITE))
    assert (spec.heads, spec.latent, spec.content_dim, spec.rope.dims, spec.value_dim) == (16, 512, 128, 64, 128)
    assert spec.scale == pytest.approx(0.11472, rel=1e-4) and spec.rope.yarn.magnitude == pytest.approx(1, rel=1e-6)
    assert spec.rope.adjacent and spec.rope.scale == 1 / 40
    assert mla_spec(hyper(**LITE | NEWER)) == spec


def test_without_a_multiplier_yarn_stretches_cosines_too():
    values = {key: value for key, value in LITE.items() if "multiplier" not in key}
    spec = mla_spec(hyper(**values))
    assert spec.rope.yarn.magnitude == pytest.approx(1.36889, rel=1e-5)
    assert spec.scale == pytest.approx(1.36889**2 / 192**0.5, rel=1e-5)
    spec = mla_spec(hyper(**{key: value for key, value in values.items() if "scaling" not in key}))
    assert spec.rope.yarn is None and spec.scale == 192**-0.5


def test_the_routers_rule_by_its_number():
    assert [scoring(hyper(expert_gating_func=n), "softmax") for n in (0, 1, 2, 3)] == [
        "softmax", "softmax", "sigmoid", "selected_softmax"]
    assert scoring(hyper(), "sigmoid") == "sigmoid"


@pytest.mark.parametrize(("key", "value", "says"), [
    ("rope.scaling.type", "linear", "stretched by yarn or not at all"),
    ("expert_gating_func", 4, "the router's rule 4 is not supported"),
    ("attention.temperature_scale", 0.1, "scores that depend on the position"),
    ("expert_weights_norm", 1, "expected true or false, found 1"),
    ("leading_dense_block_count", 5, "expected a whole number in 0..4"),
    ("leading_dense_block_count", 2, "lacks the tensor blk.1.ffn_gate.weight"),
    ("attention.kv_lora_rank", 24, "blk.0.attn_kv_a_mqa.weight: its shape is (52, 72), expected (36, 72)"),
    ("attention.q_lora_rank", 24, "blk.0.attn_q_a.weight: its shape is (52, 72), expected (24, 72)"),
    ("attention.key_length_mla", 30, "blk.0.attn_q_b.weight: its shape is (168, 52), expected (180, 52)"),
    ("attention.value_length_mla", 8, "blk.0.attn_output.weight: its shape is (72, 120), expected (72, 48)"),
    ("rope.dimension_count", 28, "rope.dimension_count: expected a whole number in 1..27"),
    ("expert_group_count", 5, "12 experts in 5 groups"),
])
def test_numbers_that_do_not_fit(tmp_path, key, value, says):
    from engine.session import load_session

    model = random_model("deepseek2")
    path = tmp_path / "m.gguf"
    write_model(path, replace(model, metadata=model.metadata | {f"deepseek2.{key}": value}))
    with pytest.raises(BadModel) as refused:
        load_session(resolve_model(path), EngineConfig(pool_workers=1, max_context=64, prefill=8)).close()
    assert says in str(refused.value)

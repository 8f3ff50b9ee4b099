"""What files of models with several kinds of layers say of them: which layer is what, and what is refused."""

from types import SimpleNamespace

import pytest

from engine.backend.base import Attention, Mamba2, Moe
from engine.config import EngineConfig
from engine.errors import BadModel
from engine.model.base import Hyper, Tensors
from engine.model.layers.delta_net import recurrent_layers
from engine.model.nemotron_h_moe import layer_specs
from packs.manifest import resolve_model
from tools.make_tiny_gguf import write_model
from tools.random_model import random_model

NANO = {  # the first layers of a published size
    "block_count": 6, "embedding_length": 2688, "attention.head_count": 32, "attention.head_count_kv": [0, 0, 0, 0, 0, 2],
    "feed_forward_length": [0, 1856, 0, 1856, 0, 0], "attention.key_length": 128, "attention.value_length": 128,
    "attention.layer_norm_rms_epsilon": 1e-5, "ssm.conv_kernel": 4, "ssm.inner_size": 4096, "ssm.state_size": 128,
    "ssm.time_step_rank": 64, "ssm.group_count": 8, "expert_count": 128, "expert_used_count": 6, "expert_weights_norm": True,
    "expert_weights_scale": 2.5}


def hyper(arch: str, **values) -> Hyper:
    metadata = {"general.architecture": arch, **{f"{arch}.{key}": value for key, value in values.items()}}
    return Hyper(SimpleNamespace(metadata=metadata, array=metadata.__getitem__))


def test_a_layer_is_what_its_key_heads_and_its_feed_forward_say():
    specs = layer_specs(hyper("nemotron_h_moe", **NANO), Tensors({}))
    assert [type(spec) for spec in specs] == [Mamba2, Moe, Mamba2, Moe, Mamba2, Attention]
    assert specs[0] == Mamba2(heads=64, head_dim=64, state_size=128, groups=8, conv_taps=4, eps=1e-5)
    assert specs[0].channels == 6144
    assert (specs[1].scoring, specs[1].activation, specs[1].weight_scale) == ("sigmoid", "squared_relu", 2.5)
    assert (specs[5].heads, specs[5].kv_heads, specs[5].rope, specs[5].scale) == (32, 2, None, 128**-0.5)


def test_recurrent_layers_by_interval_and_by_list():
    assert recurrent_layers(hyper("qwen35moe", block_count=5), interval=4) == [True, True, True, False, True]
    assert recurrent_layers(hyper("qwen35moe", block_count=3, full_attention_interval=2), interval=4) == [True, False, True]
    with pytest.raises(BadModel, match=r"lacks qwen4exp\.full_attention_interval"):
        recurrent_layers(hyper("qwen4exp", block_count=3))


@pytest.mark.parametrize(("arch", "key", "value", "says"), [
    ("lfm2moe", "attention.sliding_window", 8, "windows on some layers are not supported"),
    ("lfm2moe", "shortconv.l_cache", 4, r"shortconv.conv.weight: its shape is \(96, 3\), expected \(96, 4\)"),
    ("lfm2moe", "attention.head_count_kv", [0, 2], "expected 5 numbers of at least 0"),
    ("lfm2moe", "attention.head_count_kv", [0, 2, 2, 0, 2], "lacks the tensor blk.2.attn_q.weight"),
    ("nemotron_h_moe", "ssm.inner_size", 97, "97 values in 6 heads and 2 groups do not go together"),
    ("nemotron_h_moe", "ssm.group_count", 4, "96 values in 6 heads and 4 groups do not go together"),
    ("nemotron_h_moe", "moe_latent_size", 40, "lacks the tensor blk.1.ffn_latent_down.weight"),
    ("nemotron_h_moe", "feed_forward_length", [-1] * 8, "expected 8 numbers of at least 0"),
    ("qwen35moe", "ssm.inner_size", 97, "expected 6 heads of 16"),
    ("qwen3next", "ssm.time_step_rank", 5, r"ssm.inner_size: expected 5 heads of 16"),
])
def test_what_does_not_go_together_is_refused(tmp_path, arch, key, value, says):
    from engine.session import load_session
    model = random_model(arch)
    model.metadata[f"{arch}.{key}"] = value
    write_model(tmp_path / "m.gguf", model)
    with pytest.raises(BadModel, match=says):
        load_session(resolve_model(tmp_path / "m.gguf"), EngineConfig(pool_workers=1, max_context=64, prefill=8)).close()

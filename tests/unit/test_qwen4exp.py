"""What the qwen4exp file makes of metadata and tensors, recorded by a backend that computes nothing."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from engine.backend.base import Indexer
from engine.errors import BadModel
from engine.gguf import FORMATS, Tensor
from engine.model import qwen4exp
from engine.model.base import Hyper, Tensors
from tools.random_model import random_model

HASHES = json.loads((Path(__file__).parents[1] / "goldens" / "ple_hash.json").read_text())
TABLE = "per_layer_token_embd.weight"


class Recorder:
    """Notes every block: (call, description, shapes of the weights by role)."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def __getattr__(self, name: str):
        def call(*arguments, **_):
            spec = next((a for a in arguments if hasattr(a, "__dataclass_fields__") and not isinstance(a, Tensor)), None)
            weights = next((a for a in arguments if isinstance(a, dict)), {})
            self.calls.append((name, spec, {role: tensor.shape for role, tensor in weights.items()}))
            return ("x", "inject") if name == "hyper_read" else "x"
        return call

    def specs(self, name: str) -> list:
        return [spec for call, spec, _ in self.calls if call == name]


class Case:
    """A small model whose metadata and tensors a test may change before it is described."""

    def __init__(self) -> None:
        model = random_model("qwen4exp", layers=4)
        self.metadata = {"general.architecture": "qwen4exp"} | {
            key: getattr(value, "value", value) for key, value in model.metadata.items()}
        self.arrays = model.tensors

    def set(self, key: str, value) -> None:
        self.metadata[f"qwen4exp.{key}"] = value

    def describe(self) -> Recorder:
        tensors = {name: Tensor(name=name, shape=a.shape, format=FORMATS["F32"], n_bytes=a.nbytes, shard=0, offset=0,
                                data=a.view(np.uint8)) for name, a in self.arrays.items()}
        files = SimpleNamespace(metadata=self.metadata, array=lambda key: self.metadata[key])
        backend = Recorder()
        qwen4exp.describe(backend, Hyper(files), Tensors(tensors))
        return backend


@pytest.fixture
def case() -> Case:
    return Case()


def test_order_of_blocks(case):
    names = [name for name, _, _ in case.describe().calls]
    delta = ["hyper_read", "delta_net", "hyper_write", "hyper_read", "moe", "hyper_write"]
    sparse = [name.replace("delta_net", "attention") for name in delta]
    assert names == ["embed", *delta, "ngram", *delta, *delta, *sparse, "hyper_read", "head"]


def test_hyperparameters(case):
    calls = case.describe()
    (attention,), delta, (ngram,) = calls.specs("attention"), calls.specs("delta_net")[0], calls.specs("ngram")
    assert (attention.heads, attention.kv_heads, attention.head_dim, attention.gated) == (4, 2, 32, True)
    assert (attention.rope.dims, attention.rope.base, attention.rope.adjacent) == (16, 1e6, False)
    assert attention.indexer == Indexer(heads=4, dim=32, block=4, budget=128)
    assert attention.scale == 32**-0.5
    assert (delta.key_heads, delta.value_heads, delta.head_dim, delta.conv_taps, delta.output_gate) == (2, 6, 16, 4, "sigmoid")
    assert (ngram.dilation, ngram.conv_taps, ngram.row_width, ngram.reset_token, ngram.heads_per_ngram) == (3, 4, 8, 5, 4)
    assert calls.specs("moe")[0].normalise
    assert "inject" not in calls.calls[-2][2]  # of the final read


def test_layers_by_their_own_lists(case):
    case.set("attention.head_count_kv", [0, 0, 0, 2])
    case.set("attention.recurrent_layers", [True, True, True, False])
    case.set("full_attention_interval", 2)  # of no account
    assert [spec.kv_heads for spec in case.describe().specs("attention")] == [2]


def test_no_block_size_means_dense_attention(case):
    case.set("attention.compress_ratios", [0] * 4)
    (spec,) = case.describe().specs("attention")
    assert spec.indexer is None


def test_a_trailing_draft_block_is_left_alone(case):
    case.set("block_count", 5)
    case.set("nextn_predict_layers", 1)
    case.set("attention.compress_ratios", [0, 0, 0, 4, 4])
    assert len(case.describe().specs("moe")) == 4


def test_a_model_without_ngrams(case):
    case.set("ple.layers", [])
    assert case.describe().specs("ngram") == []


def test_hash_constants_by_the_published_rule(case):
    assert qwen4exp.hash_multipliers(HASHES["vocab"], 3) == HASHES["layer_multipliers"]
    assert qwen4exp.head_sizes(16) == HASHES["head_vocab_sizes"]
    published = case.describe().specs("ngram")
    del case.metadata["qwen4exp.ple.layer_multipliers"], case.metadata["qwen4exp.ple.head_offsets"]
    assert case.describe().specs("ngram") == published


@pytest.mark.parametrize("key, value, says", [
    ("ple.layers", [1, 2], "2 layers are not supported"),
    ("ple.layers", [4], "layer 4 of 4"),
    ("ple.head_offsets", [0, 211, 434, 661, 890, 1123, 1362, 1 << 20], "rows, fewer than the hash reaches"),
    ("ple.head_vocab_sizes", [0] * 8, "fewer than the hash reaches"),
    ("ple.layer_multipliers", [1, 1 << 62, 1], "too large for 167 tokens"),
    ("ple.eos_token_id", 167, "ple.eos_token_id"),
    ("embedding_length_per_layer_input", 16, "expected 16"),
    ("attention.head_count_kv", [0] * 4, "do not go together"),
    ("attention.head_count_kv", [2], "1 values for 4 layers"),
    ("attention.head_count_kv", 3, "do not go together"),
    ("rope.dimension_count", 64, "rope.dimension_count"),
    ("rope.scaling.factor", 4.0, "scaled rotation is not supported"),
    ("ssm.inner_size", 95, "ssm.inner_size"),
    ("ssm.state_size", 32, "ssm.inner_size"),
    ("ssm.group_count", 3, "attn_qkv.weight: its shape"),
    ("hyper_connection.low_rank", 17, "hc_attn_down.weight: its shape"),
    ("hyper_connection.count", 0, "hyper_connection.count"),
    ("expert_feed_forward_length", 41, "ffn_down_exps.weight: its shape"),
    ("expert_shared_feed_forward_length", 41, "ffn_gate_shexp.weight: its shape"),
    ("attention.indexer.key_length", 16, "indexer.q_proj.weight: its shape"),
])
def test_what_does_not_fit_is_refused_by_name(case, key, value, says):
    case.set(key, value)
    with pytest.raises(BadModel, match=says):
        case.describe()


@pytest.mark.parametrize("name", ["blk.0.ssm_a", "blk.3.indexer.k_norm.weight", "output_hc_up.weight", TABLE])
def test_a_missing_tensor_is_named(case, name):
    del case.arrays[name]
    with pytest.raises(BadModel, match=name):
        case.describe()


def test_a_head_of_another_vocabulary_is_refused(case):
    case.arrays["output.weight"] = case.arrays["output.weight"][:-1]
    with pytest.raises(BadModel, match=r"output\.weight"):
        case.describe()


def test_a_file_without_a_head_uses_its_embedding(case):
    del case.arrays["output.weight"]
    assert case.describe().calls[-1][0] == "head"

"""Files whose tensors do not have the shapes that their numbers ask for: one clear line each, before anything is computed."""

import re
from dataclasses import replace

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.errors import BadModel
from packs.manifest import resolve_model
from tools.make_tiny_gguf import write_model
from tools.random_model import random_model

ARCHITECTURES = ("deepseek2", "deepseek2-lite", "gemma4", "gemma4-dense", "lfm2moe", "llama", "llama-moe",
                 "nemotron_h_moe-latent", "qwen3moe", "qwen3next", "qwen4exp")
ROWS_ARE_FREE = ("token_embd.weight", "per_layer_token_embd.weight")  # more of them are only never asked for


def _refusal(path, model):
    from engine.session import load_session
    write_model(path / "m.gguf", model)
    with pytest.raises(BadModel) as refused:
        load_session(resolve_model(path / "m.gguf"), EngineConfig(pool_workers=1, max_context=64, prefill=8)).close()
    text = str(refused.value)
    assert "\n" not in text and len(text) < 400
    return text


def _kinds(model):
    """One tensor of every kind."""
    return {re.sub(r"\d+", "N", name): name for name in reversed(model.tensors)}.values()


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_tensor_has_its_rows_checked(tmp_path, arch):
    model = random_model(arch)
    for name in _kinds(model):
        x = model.tensors[name]
        if name not in ROWS_ARE_FREE:
            more = replace(model, tensors=model.tensors | {name: np.concatenate([x, x])})
            assert name in _refusal(tmp_path, more)
        if len(x) == 1:
            continue
        fewer = replace(model, tensors=model.tensors | {name: x[:max(1, len(x) // 2)]})
        if not (name == "token_embd.weight" and model.sizes.tied):
            assert "weight" in _refusal(tmp_path, fewer) or name in _refusal(tmp_path, fewer)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_tensor_has_its_columns_and_type_checked(tmp_path, arch):
    model = random_model(arch)
    for name in _kinds(model):
        x = model.tensors[name]
        if x.ndim > 1:
            if x.shape[-1] > 1:
                narrow = np.ascontiguousarray(x[..., :x.shape[-1] // 2])
                assert "weight" in _refusal(tmp_path, replace(model, tensors=model.tensors | {name: narrow}))
            flat = x.reshape(-1)
            said = _refusal(tmp_path, replace(model, tensors=model.tensors | {name: flat}))
            assert "weight" in said or name in said
        assert name in _refusal(tmp_path, replace(model, tensors=model.tensors | {name: x.astype(np.float64)}))


@pytest.mark.parametrize(("key", "value", "says"), [
    ("embedding_length", 32, "token_embd.weight: its shape is (167, 64), expected (vocabulary, 32)"),
    ("attention.head_count", 0, "attention.head_count: expected a whole number in 1.."),
    ("attention.head_count", 5, "blk.0.attn_q.weight: 5 query heads of 16 values on 2 key heads do not go together"),
    ("attention.head_count", 1 << 30, "blk.0.attn_q.weight: its shape is (64, 64), expected (17179869184, 64)"),
    ("attention.key_length", 24, "blk.0.attn_q.weight: its shape is (64, 64), expected (96, 64)"),
    ("attention.value_length", 24, "blk.0.attn_v.weight: its shape is (32, 64), expected (48, 64)"),
    ("rope.dimension_count", 18, "rope.dimension_count"), ("rope.dimension_count", 7, "rope.dimension_count"),
    ("rope.freq_base", 0.0, "a rotation of base 0.0"),
    ("block_count", 10**9, "block_count: expected a whole number in 1..1024"), ("block_count", 4, "lacks the tensor blk.3."),
    ("expert_used_count", 7, "expert_used_count: expected a whole number in 1..6"),
    ("expert_count", 5, "blk.0.ffn_gate_inp.weight: its shape is (6, 64), expected (5, 64)"),
    ("block_count", 2, "the tensor blk.2.attn_norm.weight and 9 more: the architecture llama has no place for it here"),
    ("attention.layer_norm_rms_epsilon", -1.0, "expected a number of at least 0, found -1.0"),
    ("expert_used_count", True, "expected a whole number in 1..6, found True"),
    ("context_length", 0, "context_length: expected a whole number in 1.."),
])
def test_numbers_that_do_not_fit_the_tensors(tmp_path, key, value, says):
    model = random_model("llama-moe")
    assert says in _refusal(tmp_path, replace(model, metadata=model.metadata | {f"llama.{key}": value}))


@pytest.mark.parametrize(("key", "value", "says"), [
    ("attention.shared_kv_layers", 8, "blk.0: it shares the cache of a layer of its kind"),
    ("attention.shared_kv_layers", 9, "attention.shared_kv_layers: expected a whole number in 0..8, found 9"),
    ("attention.head_count_kv", [3, 2], "gemma4.attention.head_count_kv: 2 values for 8 layers"),
    ("attention.head_count_kv", 3, "blk.1.attn_k.weight: its shape is (64, 72), expected (96, 72)"),
    ("attention.value_length_swa", 24, "gemma4.attention.value_length_swa: expected 20"),
    ("attention.sliding_window_pattern", [True, False], "expected 8 truth values"),
    ("attention.sliding_window_pattern", [False] * 8, "blk.0.attn_q.weight: its shape is (120, 72), expected (192, 72)"),
    ("rope.dimension_count", 16, "rope_freqs.weight: expected F32 (8,), found F32 (16,)"),
    ("rope.dimension_count_swa", 21, "21 of 20 dimensions of a head rotated"),
    ("embedding_length_per_layer_input", 12, "lacks the tensor per_layer_token_embd.weight"),
])
def test_numbers_of_layers_that_differ(tmp_path, key, value, says):
    model = random_model("gemma4")
    assert says in _refusal(tmp_path, replace(model, metadata=model.metadata | {f"gemma4.{key}": value}))


def test_a_tensor_that_the_description_leaves_out(tmp_path):
    model = random_model("llama")
    tensors = model.tensors | {"blk.1.attn_q_norm.weight": np.ones(24, np.float32)}
    assert "blk.1.attn_q_norm.weight: the architecture llama has no" in _refusal(tmp_path, replace(model, tensors=tensors))


def test_a_trailing_draft_block_may_be_left_out(tmp_path):
    from engine.session import load_session
    model = random_model("llama-moe")
    write_model(tmp_path / "m.gguf", replace(model, metadata=model.metadata | {"llama.nextn_predict_layers": 1}))
    load_session(resolve_model(tmp_path / "m.gguf"), EngineConfig(pool_workers=1, max_context=64)).close()


def test_a_vocabulary_larger_than_its_embedding(tmp_path):
    model = random_model("llama", tokenizer="bpe")
    tensors = model.tensors | {"token_embd.weight": model.tensors["token_embd.weight"][:-1]}
    n = model.sizes.vocab
    assert f"has {n - 1} rows for a vocabulary of {n} tokens" in _refusal(tmp_path, replace(model, tensors=tensors))

"""`qwen3next` files in the older layout, where one tensor holds all projections of a delta net by key head."""

from dataclasses import replace

import numpy as np
import pytest

from engine.errors import BadModel
from tools.make_tiny_gguf import write_model
from tools.random_model import RandomModel, random_model

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def older(model: RandomModel) -> RandomModel:
    """The same model with queries, keys, values and gates of every key head in one tensor."""
    s, tensors = model.sizes, {}
    keys, dim, per_key = s.ssm_key_heads, s.ssm_dim, s.ssm_value_heads // s.ssm_key_heads
    for name, tensor in model.tensors.items():
        if not name.endswith(("attn_qkv.weight", "attn_gate.weight")):
            tensors[name] = tensor
        elif name.endswith("attn_qkv.weight"):
            q, k, v = np.split(tensor, [keys * dim, 2 * keys * dim])
            z = model.tensors[name.replace("attn_qkv", "attn_gate")]
            parts = [x.reshape(keys, count * dim, s.width) for x, count in ((q, 1), (k, 1), (v, per_key), (z, per_key))]
            tensors[name.replace("attn_qkv", "ssm_in")] = np.concatenate(parts, 1).reshape(-1, s.width)
    return replace(model, tensors=tensors)


def test_the_older_layout_gives_the_same_bits(tmp_path, sessions):
    model = random_model("qwen3next", seed=3)
    new, old = (write_model(tmp_path / f"{name}.gguf", m)[0] for name, m in (("new", model), ("old", older(model))))
    assert np.array_equal(sessions(new).step(TOKENS, logits="all"), sessions(old).step(TOKENS, logits="all"))


@pytest.mark.parametrize("name", ["ssm_ba", "ssm_in"])
def test_a_tensor_that_cannot_be_taken_apart_is_named(tmp_path, sessions, name):
    model = older(random_model("qwen3next", seed=3))
    key = f"blk.0.{name}.weight"
    model = replace(model, tensors={**model.tensors, key: model.tensors[key][1:]})
    with pytest.raises(BadModel, match=rf"blk\.0\.{name}\.weight: its shape is .*, expected \d+ rows"):
        sessions(write_model(tmp_path / "m.gguf", model)[0])

"""Files that are not as the plain ones: a format of its own for every tensor, narrow experts, scales beside weights, one
tensor in place of two, parts in other files. Each must say what the plain file says, to the bit where nothing was rounded."""

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from products import dequantize
from test_architectures import divergence, read_all

from engine.errors import BadModel
from engine.gguf import FORMATS, Tensor, open_model
from packs.gguf_file import Stored, write_gguf
from tests.kernels.conftest import open_session
from tools.make_tiny_gguf import write_model
from tools.random_model import RECIPES, RandomModel, random_model
from tools.simple_blocks import encode

TOKENS = np.random.default_rng(0).integers(0, 160, 40).astype(np.int32)
NARROW = ("Q8_0", "NVFP4", "Q5_1", "MXFP4", "F16", "Q4_0", "IQ4_NL", "BF16", "Q5_0", "Q4_1")  # blocks of 64 and less
WIDE = ("IQ4_XS", *NARROW[:4], "TQ2_0", *NARROW[4:])
MOST_MIXED_KL = 0.05  # formats of four bits over three layers


def logits_of(folder, model: RandomModel, *, layout: str = "one", tensors: dict | None = None) -> np.ndarray:
    """f32 [tokens, vocab] of a model, or of its metadata with other tensors."""
    path = folder / "m.gguf"
    if tensors is None:
        path = write_model(path, model, layout=layout)[0]
    else:
        write_gguf(path, model.architecture, metadata=model.metadata, tensors=tensors)
    with open_session(path, max_context=64, pool_workers=2) as session:
        return read_all(session, TOKENS, [])


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a.view(np.int32), b.view(np.int32))


def values_of(stored: np.ndarray | Stored) -> np.ndarray:
    """What a stored tensor holds, f32."""
    if isinstance(stored, np.ndarray):
        return stored
    form = FORMATS[stored.type_id]
    return dequantize(Tensor("x", stored.shape, form, stored.data.nbytes, 0, 0, stored.data))


def mixed(model: RandomModel) -> dict[str, np.ndarray | Stored]:
    """Every matrix in the next format that its rows allow."""
    wide, narrow, tensors = cycle(WIDE), cycle(NARROW), {}
    for name, x in model.tensors.items():
        is_matrix = x.ndim > 1 and "conv" not in name
        tensors[name] = encode(x, next(wide) if x.shape[-1] % 256 == 0 else next(narrow)) if is_matrix else x
    return tensors


@pytest.mark.parametrize(("arch", "changes"), [
    ("llama-moe", {}), ("llama-moe", {"ff": 640}), ("deepseek2", {"layers": 2, "ff": 640, "shared_ff": 1280}),
    ("deepseek2-lite", {"layers": 2}), ("qwen4exp", {"ff": 640}), ("gemma4", {}), ("gemma4-dense", {})])
def test_a_format_for_every_tensor(tmp_path, arch, changes):
    experts = min(RECIPES[arch].blocks.experts, 4)  # all of them used, so that none can be chosen otherwise
    model = random_model(arch, preset="blocks", experts=experts, experts_used=experts, **changes)
    model.metadata.pop(f"{model.architecture}.expert_group_count", None)
    tensors = mixed(model)
    assert len({x.type_id for x in tensors.values() if isinstance(x, Stored)}) >= 8
    ours = logits_of(tmp_path, model, tensors=tensors)
    twin = logits_of(tmp_path, model, tensors={name: values_of(x) for name, x in tensors.items()})
    assert 1e-7 < divergence(twin, ours).mean() < MOST_MIXED_KL


@pytest.mark.parametrize("arch", ["deepseek2", "gemma4-dense", "gpt-oss", "llama-moe", "qwen2moe", "qwen4exp"])
def test_scales_beside_weights_are_in_their_products(tmp_path, arch):
    model, rng = random_model(arch), np.random.default_rng(1)
    tensors = {}
    for name, x in model.tensors.items():
        tensors[name] = x
        if x.ndim > 1 and not any(word in name for word in ("embd", "conv", ".bias", "sinks")):
            factors = 2.0 ** rng.integers(-3, 4, x.shape[:-2] or (1,)).astype(np.float32)  # which round nothing
            tensors[name] = x / factors[..., None, None] if x.ndim > 2 else x / factors
            tensors[name.replace(".weight", ".scale")] = factors
            tensors[name.replace(".weight", ".input_scale")] = np.ones(1, np.float32)
    assert sum(name.endswith(".scale") for name in tensors) > 10
    assert same_bits(logits_of(tmp_path, model, tensors=tensors), logits_of(tmp_path, model))


@pytest.mark.parametrize(("name", "shape"), [
    ("token_embd.scale", (1,)), ("blk.0.attn_norm.scale", (1,)), ("blk.0.attn_q.scale", (2,)),
    ("blk.0.ffn_up_exps.scale", (1,))])
def test_a_scale_without_a_place_is_refused_by_name(tmp_path, name, shape):
    model = random_model("llama-moe")
    with pytest.raises(BadModel, match=name):
        logits_of(tmp_path, model, tensors=model.tensors | {name: np.ones(shape, np.float32)})


@pytest.mark.parametrize("kind", ["F32", "BF16", "F16", "Q8_0", "Q2_0", "IQ4_XS"])
def test_both_layouts_of_compressed_attention_say_the_same(tmp_path, kind):
    model = random_model("deepseek2-lite", preset="blocks", layers=2, seed=3)
    s = model.sizes
    content = s.head_dim - s.rope_dims
    older, newer = dict(model.tensors), dict(model.tensors)
    for name in [name for name in older if "attn_kv_b" in name]:
        stored = older[name] if kind == "F32" else encode(older[name], kind)
        older[name] = stored
        keys = values_of(stored).reshape(s.heads, content + s.value_dim, s.latent)[:, :content].transpose(0, 2, 1)
        keys = np.ascontiguousarray(keys if kind in ("F32", "BF16") else keys.astype(np.float16))
        newer[name.replace("attn_kv_b", "attn_k_b")] = keys
        rows = stored if kind == "F32" else stored.data
        rows = np.ascontiguousarray(rows.reshape(s.heads, content + s.value_dim, -1)[:, content:])
        newer[name.replace("attn_kv_b", "attn_v_b")] = rows if kind == "F32" else Stored(
            rows, (s.heads, s.value_dim, s.latent), stored.type_id)
        del newer[name]
    key = model.architecture + ".attention."
    described = replace(model, metadata=model.metadata | {
        key + "key_length": s.latent + s.rope_dims, key + "value_length": s.latent, key + "head_count_kv": 1,
        key + "key_length_mla": s.head_dim, key + "value_length_mla": s.value_dim})
    assert same_bits(logits_of(tmp_path, model, tensors=older), logits_of(tmp_path, described, tensors=newer))


@pytest.mark.parametrize("arch", ["llama", "qwen3moe", "deepseek2"])
def test_a_head_that_is_tied_or_in_another_file(tmp_path, arch):
    model = random_model(arch)
    plain = logits_of(tmp_path, model)
    assert same_bits(logits_of(tmp_path, model, layout="shards"), plain)
    tied = "output.weight" not in model.tensors
    if tied:
        model.tensors["output.weight"] = model.tensors["token_embd.weight"].copy()
        assert same_bits(logits_of(tmp_path, model, layout="shards"), plain)
    else:
        model.tensors["output.weight"] = model.tensors["token_embd.weight"].copy()
        untied = logits_of(tmp_path, model, layout="shards")
        del model.tensors["output.weight"]
        assert same_bits(logits_of(tmp_path, model), untied) and not same_bits(untied, plain)


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "IQ4_XS"])
def test_gate_and_up_in_one_tensor(tmp_path, kind):
    model = random_model("deepseek2", preset="blocks", layers=2)
    apart = {name: encode(x, kind) if "_exps" in name and kind != "F32" else x for name, x in model.tensors.items()}
    fused = dict(model.tensors)
    for name in [name for name in fused if "ffn_gate_exps" in name]:
        both = np.concatenate([fused.pop(name), fused.pop(name.replace("gate", "up"))], axis=1)
        fused[name.replace("gate", "gate_up")] = both
    fused = {name: encode(x, kind) if "_exps" in name and kind != "F32" else x for name, x in fused.items()}
    assert same_bits(logits_of(tmp_path, model, tensors=fused), logits_of(tmp_path, model, tensors=apart))


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("arch", ["qwen2moe", "gemma3", "gemma4-dense"])  # with biases, with norms, and with shared caches
def test_queries_keys_and_values_in_one_tensor(tmp_path, arch, kind):
    model = random_model(arch, preset="blocks")
    fused = dict(model.tensors)
    for q in [name for name in fused if ".attn_q." in name and name.replace("_q.", "_v.") in fused]:
        fused[q.replace("_q.", "_qkv.")] = np.concatenate([fused.pop(q.replace("_q.", f"_{role}.")) for role in "qkv"])
    apart, fused = ({name: encode(x, kind) if ".attn_" in name and x.ndim > 1 and kind != "F32" else x
                     for name, x in tensors.items()} for tensors in (model.tensors, fused))
    assert same_bits(logits_of(tmp_path, model, tensors=fused), logits_of(tmp_path, model, tensors=apart))


def test_one_tensor_of_queries_keys_and_values_has_its_rows_checked(tmp_path):
    model = random_model("qwen2moe")
    b = "blk.0.attn_"
    fused = np.concatenate([model.tensors.pop(f"{b}{role}.weight") for role in "qkv"])
    for odd in (fused[:-1], np.concatenate([fused, fused]), fused[:, :-1].copy()):
        with pytest.raises(BadModel, match=r"blk\.0\.attn_qkv\.weight"):
            logits_of(tmp_path, model, tensors=model.tensors | {f"{b}qkv.weight": odd})


def test_experts_of_640_are_refused_in_a_format_of_256_by_name(tmp_path):
    model = random_model("llama-moe", preset="blocks", ff=640, layers=1)
    form, name = FORMATS["Q4_K"], "blk.0.ffn_down_exps.weight"
    shape = model.tensors[name].shape
    blocks = np.zeros((*shape[:-1], 2 * form.block_bytes), np.uint8)
    write_gguf(tmp_path / "m.gguf", model.architecture, metadata=model.metadata,
               tensors=model.tensors | {name: Stored(blocks, shape, form.id)})
    with pytest.raises(BadModel, match=rf"640 elements is not whole blocks of 256.*{name}"):
        open_model(tmp_path / "m.gguf")

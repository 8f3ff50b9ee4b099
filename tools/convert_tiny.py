"""Turns a training checkpoint of the embedded model into a pack: GGUF file and manifest.

    python -m tools.convert_tiny CHECKPOINT TOKENIZER.json [--out packs/tiny] [--float]

The trainer's weights already carry the file's names, tiled value heads and whole norm weights, so this chooses block
formats and writes the metadata. With --float every tensor is F32 and the draft block, which llama.cpp refuses in one file
with the trunk, is left out: for comparing implementations.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from gguf import GGMLQuantizationType
from gguf import quants as gguf_quants

from engine.gguf import FORMATS
from packs.gguf_file import Stored, Typed, write_gguf
from packs.manifest import MANIFEST, Manifest
from tools.tiny.checkpoint import BLOCKY, load
from tools.tiny.config import TinyConfig
from tools.tiny.quants import ENCODE
from tools.tiny.render import TEMPLATE
from tools.tiny.tokenizer import CONTROL, VISIBLE

MODEL = "model.gguf"
NAME = "terrace-tiny"
# small, and what an error in them does is large: router, gates of streams, decay and write strength, convolutions
_PRECISE = ("ffn_gate_inp", "inject", "ssm_alpha", "ssm_beta", "conv1d")
_LARGE = ("attn_gate", "ssm_out", "ple_key", "ple_value")  # five bits, so that the file stays below 24 MB
_NORMAL, _CONTROL, _USER, _UNUSED = 1, 3, 4, 5
_SAMPLING = {"temperature": 0.3, "top_p": 0.95, "top_k": 20}


def block_format(name: str, x: np.ndarray) -> str:
    """The format of a tensor in the pack. Experts and the n-gram table were trained on the grid of Q4_0."""
    if x.ndim < 2 or any(word in name for word in _PRECISE):
        return "F32"
    if name.endswith(BLOCKY):
        return "Q4_0"
    return "Q5_0" if any(word in name for word in _LARGE) else "Q8_0"


def stored(name: str, x: np.ndarray) -> np.ndarray | Stored:
    """A tensor as it goes into the file."""
    kind = block_format(name, x)
    if kind == "F32":
        return x.astype(np.float32)
    encode = ENCODE.get(kind) or (lambda values: gguf_quants.quantize(values, GGMLQuantizationType[kind]))
    return Stored(encode(x), x.shape, FORMATS[kind].id)


def vocabulary(tokenizer: dict[str, Any], size: int) -> dict[str, Any]:
    """The tokenizer's metadata, from the JSON of the `tokenizers` library."""
    tokens, types = [""] * size, [_NORMAL] * size
    for text, i in tokenizer["model"]["vocab"].items():
        tokens[i] = text
    for added in tokenizer["added_tokens"]:
        text = added["content"]
        kind = _CONTROL if text in CONTROL else _USER if text in VISIBLE else _UNUSED
        tokens[added["id"]], types[added["id"]] = text, kind
    ids = {text: i for i, text in enumerate(tokens)}
    prefix = "tokenizer.ggml."
    return {
        prefix + "model": "gpt2", prefix + "pre": "qwen35", prefix + "tokens": tokens, prefix + "token_type": types,
        prefix + "merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
        prefix + "bos_token_id": ids["<|endoftext|>"], prefix + "eos_token_id": ids["<|im_end|>"],
        prefix + "padding_token_id": ids["<|endoftext|>"], prefix + "add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE}


def hyperparameters(c: TinyConfig, *, drafts: int) -> dict[str, Any]:
    """The metadata of the architecture; draft blocks are counted and marked."""
    half = c.rotary_dims // 2
    values = {
        "block_count": c.layers + drafts, "nextn_predict_layers": drafts, "context_length": c.context,
        "embedding_length": c.width,
        "attention.head_count": c.heads, "attention.head_count_kv": c.kv_heads, "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim, "attention.layer_norm_rms_epsilon": c.eps,
        "attention.indexer.head_count": c.index_heads, "attention.indexer.key_length": c.index_dim,
        "attention.indexer.top_k": c.index_budget,
        "attention.compress_ratios": [c.block if c.attends(layer) else 0 for layer in range(c.layers + drafts)],
        "full_attention_interval": c.full_interval, "rope.dimension_count": c.rotary_dims, "rope.freq_base": c.rope_base,
        "rope.dimension_sections": [half - 2 * (half // 3), half // 3, half // 3, 0],
        "expert_count": c.experts, "expert_used_count": c.top_k, "expert_feed_forward_length": c.expert_width,
        "expert_shared_feed_forward_length": c.expert_width,
        "ssm.conv_kernel": c.conv, "ssm.state_size": c.state_dim, "ssm.group_count": c.key_heads,
        "ssm.time_step_rank": c.value_heads, "ssm.inner_size": c.value_width,
        "hyper_connection.count": c.streams, "hyper_connection.low_rank": c.stream_rank,
        "ple.layers": [c.ple_layer], "ple.ngram_size": c.ple_ngram, "ple.heads_per_ngram": c.ple_heads,
        "ple.conv_kernel": c.ple_conv, "ple.eos_token_id": c.end_of_text,
        "ple.layer_multipliers": Typed(list(c.ple_multipliers), "u64"),
        "ple.head_vocab_sizes": Typed(list(c.ple_sizes), "u64"), "ple.head_offsets": Typed(list(c.ple_offsets), "u64"),
        "embedding_length_per_layer_input": c.ple_row_width}
    return {f"qwen4exp.{key}": value for key, value in values.items()}


def convert(checkpoint: Path, tokenizer: Path, out: Path, *, as_float: bool = False) -> Path:
    """Write the pack's directory and return the model's file."""
    weights, note = load(checkpoint)
    config = TinyConfig(**note.get("config", {}))
    tensors = {}
    for name, x in weights.items():
        if as_float and name.startswith(f"blk.{config.layers}."):
            continue
        if name.endswith("ssm_a_log"):
            name, x = name.removesuffix("_log"), -np.exp(x)
        tensors[name] = x.astype(np.float32) if as_float else stored(name, x)
    metadata = {"general.name": NAME, **hyperparameters(config, drafts=int(not as_float)),
                **vocabulary(json.loads(tokenizer.read_text()), config.vocab),
                **{f"general.sampling.{key}": value for key, value in _SAMPLING.items()}}
    out.mkdir(parents=True, exist_ok=True)
    write_gguf(out / MODEL, "qwen4exp", metadata=metadata, tensors=tensors)
    manifest = Manifest(name=NAME, model=MODEL, family="chatml", licence="see MODEL_CARD.md", sampling=_SAMPLING,
                        source="trained by tools/train_tiny.py", stop_tokens=CONTROL)
    (out / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    return out / MODEL


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="folder with part-*.npz and note.json")
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json of the training data")
    parser.add_argument("--out", type=Path, default=Path("packs/tiny"))
    parser.add_argument("--float", action="store_true", dest="as_float", help="store everything as F32")
    args = parser.parse_args()
    model = convert(args.checkpoint, args.tokenizer, args.out, as_float=args.as_float)
    print(f"{model}: {model.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

"""Turns a dense model into a mixture of experts: every expert a copy of the FFN, and a random router before them.

Weights of the chosen experts are renormalised to one, so in exact arithmetic the result says what the dense model says.
Blocks are copied as they are stored, nothing is quantized again. Architecture `llama` (Mixtral's form) only.
"""

import re
from typing import Any

import numpy as np

from engine.errors import BadModel
from engine.gguf import ArrayStub, ModelFiles
from packs.gguf_file import Stored, Typed

_FFN = re.compile(r"blk\.(?P<layer>\d+)\.ffn_(?P<part>gate|up|down)\.weight")


def plain_metadata(model: ModelFiles) -> dict[str, Any]:
    """All metadata of a model's first file, arrays decoded, as `packs.gguf_file.write_gguf` takes it."""
    values = {}
    for key, value in model.metadata.items():
        values[key] = Typed(model.array(key), value.type) if isinstance(value, ArrayStub) else value
    return values


def stored_tensors(model: ModelFiles) -> dict[str, Stored]:
    """All tensors of a model as they lie in its files."""
    return {name: Stored(t.data, t.shape, t.format.id) for name, t in model.tensors.items()}


def upcycle(
    metadata: dict[str, Any], tensors: dict[str, Any], *, experts: int = 4, used: int = 2, seed: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and tensors of the mixture; tensors may be Stored or float arrays, and stay what they are."""
    if metadata.get("general.architecture") != "llama" or metadata.get("llama.expert_count"):
        raise BadModel("only a dense model of the architecture llama can be turned into a mixture of experts")
    width = metadata["llama.embedding_length"]
    rng = np.random.default_rng(seed)
    out: dict[str, Any] = {}
    for name, tensor in tensors.items():
        match = _FFN.fullmatch(name)
        if match is None:
            out[name] = tensor
            continue
        prefix = f"blk.{match['layer']}."
        out[f"{prefix}ffn_{match['part']}_exps.weight"] = _copies(tensor, experts)
        router = f"{prefix}ffn_gate_inp.weight"
        if router not in out:
            out[router] = (rng.standard_normal((experts, width)) / np.sqrt(width)).astype(np.float32)
    return metadata | {"llama.expert_count": experts, "llama.expert_used_count": used}, out


def _copies(tensor: Any, n: int) -> Any:
    if isinstance(tensor, Stored):
        return Stored(_copies(tensor.data, n), (n, *tensor.shape), tensor.type_id)
    return np.broadcast_to(tensor, (n, *tensor.shape))

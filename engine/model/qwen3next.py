"""`qwen3next` (Qwen3-Next-80B-A3B): `qwen35moe` with value heads beside those that read the same key head, and with its
decay and write strength, in older files all its projections, stored together by key head."""

from functools import partial

import numpy as np

from engine.backend.base import Backend, DeltaNet
from engine.errors import BadModel
from engine.gguf import Tensor
from engine.model.base import Hyper, Tensors, chosen_rows
from engine.model.layers.delta_net import DELTA_NET, delta_net_spec
from engine.model.qwen35moe import describe_with


def describe(backend: Backend, hyper: Hyper, tensors: Tensors) -> None:
    """Record the trunk."""
    spec = delta_net_spec(hyper, "silu", neighbours=True)
    if spec.value_heads % spec.key_heads:
        raise BadModel(f"{hyper.arch}.ssm.time_step_rank: expected a multiple of {spec.key_heads} key heads")
    describe_with(backend, hyper, tensors, spec, partial(_weights, spec))


def _weights(spec: DeltaNet, tensors: Tensors, layer: int) -> dict[str, Tensor]:
    """Tensors of one layer by role, taken apart where they are stored together."""
    per_key, dim = spec.value_heads // spec.key_heads, spec.head_dim
    together = [("ssm_ba.weight", {"beta": [per_key], "alpha": [per_key]})]
    if tensors.get(f"blk.{layer}.ssm_in.weight") is not None:
        together.append(("ssm_in.weight", {"qkv": [dim, dim, per_key * dim], "z": [per_key * dim]}))
    found: dict[str, Tensor] = {}
    for name, parts in together:
        whole = tensors[f"blk.{layer}.{name}"]
        found |= {role: chosen_rows(whole, rows, role) for role, rows in _rows(parts, spec.key_heads, whole).items()}
    return found | tensors.block(layer, {role: name for role, name in DELTA_NET.items() if role not in found})


def _rows(parts: dict[str, list[int]], key_heads: int, whole: Tensor) -> dict[str, np.ndarray]:
    """Which rows make up each part, i64 [rows]: stored are all pieces of one key head, wanted is each piece of all of them."""
    step = sum(sum(pieces) for pieces in parts.values())
    if whole.shape[0] != step * key_heads:
        raise BadModel(f"{whole.name}: its shape is {whole.shape}, expected {step * key_heads} rows")
    grid, start, found = np.arange(step * key_heads).reshape(key_heads, step), 0, {}
    for role, pieces in parts.items():
        columns = []
        for count in pieces:
            columns.append(grid[:, start:start + count].ravel())
            start += count
        found[role] = np.concatenate(columns)
    return found

"""What architecture files share: typed access to metadata, tensors by layer, and what a description returns.

Knows GGUF names and nothing of processors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.backend.base import Backend
from engine.errors import BadModel
from engine.gguf import ModelFiles, Tensor

MAX_LAYERS = 1024


class Hyper:
    """Hyperparameters of one file: `<arch>.<key>` of the metadata, with checks."""

    def __init__(self, files: ModelFiles) -> None:
        self._files = files
        self.arch = str(files.metadata["general.architecture"])

    def _get(self, key: str, default: Any) -> Any:
        value = self._files.metadata.get(f"{self.arch}.{key}", default)
        if value is None:
            raise BadModel(f"the metadata lacks {self.arch}.{key}")
        return value

    def has(self, key: str) -> bool:
        """Whether the file gives a value."""
        return f"{self.arch}.{key}" in self._files.metadata

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = 1 << 31) -> int:
        """An integer in low..high."""
        value = self._get(key, default)
        if not _is_integer(value) or not low <= value <= high:
            raise BadModel(f"{self.arch}.{key}: expected a whole number in {low}..{high}, found {value!r}"[:200])
        return value

    def number(self, key: str, default: float | None = None, *, low: float = -1e30) -> float:
        """A finite float of at least `low`."""
        value = self._get(key, default)
        if not (_is_integer(value) or isinstance(value, float)) or not low <= value < 1e30:
            least = f" of at least {low:g}" if low > -1e30 else ""
            raise BadModel(f"{self.arch}.{key}: expected a number{least}, found {value!r}"[:200])
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise BadModel(f"{self.arch}.{key}: expected a text, found {value!r}"[:200])
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A truth value."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise BadModel(f"{self.arch}.{key}: expected true or false, found {value!r}"[:200])
        return value

    def is_array(self, key: str) -> bool:
        """Whether the file gives an array for it."""
        value = self._files.metadata.get(f"{self.arch}.{key}")
        return value is not None and not isinstance(value, int | float | str)

    def booleans(self, key: str, length: int) -> list[bool]:
        """The first `length` values of an array of truth values."""
        values = self._files.array(f"{self.arch}.{key}")
        if len(values) < length or not all(isinstance(v, int) for v in values):
            raise BadModel(f"{self.arch}.{key}: expected {length} truth values, found {values!r}"[:200])
        return [bool(v) for v in values[:length]]

    def integers(self, key: str, length: int | None = None) -> list[int]:
        """An array of integers, of a given length if one is expected."""
        values = self._files.array(f"{self.arch}.{key}")
        if (length is not None and len(values) != length) or not all(isinstance(v, int) for v in values):
            raise BadModel(f"{self.arch}.{key}: expected {length or 'some'} whole numbers, found {values!r}"[:200])
        return values

    def per_layer(self, key: str, layers: int, default: int | None = None) -> list[int]:
        """One integer a layer: from an array, or a single value for all."""
        name = f"{self.arch}.{key}"
        if name in self._files.metadata and not isinstance(self._files.metadata[name], int):
            return self.integers(key)[:layers]
        return [self.integer(key, default, low=0)] * layers

    def of_layers(self, key: str, default: int | None = None) -> list[int]:
        """One integer for every layer of the trunk, none of them negative."""
        values = self.per_layer(key, self.layers, default)
        if len(values) < self.layers or min(values) < 0:
            raise BadModel(f"{self.arch}.{key}: expected {self.layers} numbers of at least 0, found {values!r}"[:200])
        return values

    @property
    def layers(self) -> int:
        """Blocks of the trunk; trailing draft blocks are not counted."""
        blocks = self.integer("block_count", high=MAX_LAYERS)
        drafts = self.integer("nextn_predict_layers", 0, low=0, high=blocks - 1)
        return blocks - drafts


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class Tensors:
    """The tensors of one file by name; a missing one is a BadModel that names it. Notes which were asked for.

    A matrix `X.weight` comes with the factor of its products, `X.scale`, if the file has one.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._asked: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        found = self.get(name)
        if found is None:
            raise BadModel(f"the file lacks the tensor {name}")
        return found

    def get(self, name: str) -> Tensor | None:
        """The tensor, or None."""
        self._asked.add(name)
        found = self._tensors.get(name)
        stem = name.removesuffix(".weight")
        scale = self._tensors.get(f"{stem}.scale")
        if found is None or scale is None or stem == name or len(found.shape) < 2:
            return found
        if scale.shape != (found.shape[:-2] or (1,)):
            return found  # it is something else, which the architecture asks for, or nobody
        self._asked |= {scale.name, f"{stem}.input_scale"}  # the latter says how another engine rounds activations
        return replace(found, scale=scale)

    def check_all_used(self, hyper: Hyper) -> None:
        """Raise BadModel if a description left a tensor of the trunk out: what it means would be missing from the text."""
        drafts = tuple(f"blk.{n}." for n in range(hyper.layers, hyper.integer("block_count")))
        unused = [name for name in self._tensors if name not in self._asked and not name.startswith(drafts)]
        if unused:
            more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
            raise BadModel(f"the tensor {unused[0]}{more}: the architecture {hyper.arch} has no place for it here"[:300])

    def block(self, layer: int, roles: Mapping[str, str], optional: Mapping[str, str] | None = None) -> dict[str, Tensor]:
        """Tensors of one layer by role: `roles` must be there, `optional` may be. Values are names behind `blk.N.`."""
        found = {role: self[f"blk.{layer}.{name}"] for role, name in roles.items()}
        for role, name in (optional or {}).items():
            tensor = self.get(f"blk.{layer}.{name}")
            if tensor is not None:
                found[role] = tensor
        return found

    def head(self) -> Tensor:
        """The output matrix; a file without one ties it to the embedding."""
        return self.get("output.weight") or self["token_embd.weight"]


def float_values(tensor: Tensor, count: int) -> tuple[float, ...]:
    """The `count` values of a small F32 tensor, for what is a number in a description and a tensor in the file."""
    if tensor.shape != (count,) or tensor.format.name != "F32":
        raise BadModel(f"{tensor.name}: expected F32 ({count},), found {tensor.format.name} {tensor.shape}")
    return tuple(tensor.data.view("<f4").tolist())


def rows_of(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Rows start..stop of a matrix, or those values of a float vector, as a tensor of their own."""
    count = tensor.shape[0]
    step, rest = divmod(len(tensor.data), count)  # the data of a vector are its bytes
    if rest or not step:
        raise BadModel(f"{tensor.name}: {tensor.format.name} {tensor.shape} cannot be taken apart")
    data = tensor.data[start * step:stop * step]
    return replace(tensor, name=f"{tensor.name}[{start}:{stop}]", shape=(stop - start, *tensor.shape[1:]), data=data,
                   n_bytes=data.nbytes, offset=tensor.offset + tensor.n_bytes * start // count)


def chosen_rows(tensor: Tensor, rows: np.ndarray, part: str) -> Tensor:
    """A copy of some rows of a matrix, i64 [rows] their numbers, as a tensor of its own."""
    data = np.ascontiguousarray(tensor.data[rows])
    return replace(tensor, name=f"{tensor.name}[{part}]", shape=(len(rows), *tensor.shape[1:]), data=data, n_bytes=data.nbytes)


@dataclass(frozen=True)
class Architecture:
    """An entry of the registry."""

    describe: Callable[[Backend, Hyper, Tensors], None]  # records the whole trunk, embedding to logits


_ROUTER = {"router": "ffn_gate_inp.weight", "down_exps": "ffn_down_exps.weight"}
_ROUTER_EXTRAS = {
    "router_bias": "ffn_gate_inp.bias", "selection_bias": "exp_probs_b.bias", "gate_exps_bias": "ffn_gate_exps.bias",
    "up_exps_bias": "ffn_up_exps.bias", "down_exps_bias": "ffn_down_exps.bias", "down_exps_scale": "ffn_down_exps.scale"}


def routed_experts(tensors: Tensors, layer: int, *, gated: bool = True) -> dict[str, Tensor]:
    """Roles of a layer's routed experts, with gate and up in one tensor or two, and whatever biases and scales there are."""
    fused = tensors.get(f"blk.{layer}.ffn_gate_up_exps.weight") is not None
    first = {"gate_up_exps": "ffn_gate_up_exps.weight"} if fused else {"up_exps": "ffn_up_exps.weight"}
    if gated and not fused:
        first["gate_exps"] = "ffn_gate_exps.weight"
    found = tensors.block(layer, {**_ROUTER, **first}, _ROUTER_EXTRAS)
    if "down_exps_scale" in found:  # which is applied where routes are added up, and not twice
        found["down_exps"] = replace(found["down_exps"], scale=None)
    return found

"""Random models of `qwen3next`: as `qwen35moe`, with decay and write strength of a delta net in one tensor."""

from collections.abc import Mapping
from typing import Any

from tools.random_model.base import Recipe, Sizes, Weights
from tools.random_model.qwen4exp import delta_net_tensors
from tools.random_model.qwen35moe import BLOCKS, SIZES, layers, metadata


def _metadata(s: Sizes, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    return metadata(s)


def _recurrent(w: Weights, s: Sizes, b: str) -> None:
    delta_net_tensors(w, s, b)
    for name in ("alpha", "beta"):
        del w.tensors[f"{b}ssm_{name}.weight"]
    w.matrix(b + "ssm_ba", 2 * s.ssm_value_heads, s.width)


def _tensors(w: Weights, s: Sizes) -> None:
    layers(w, s, _recurrent)


RECIPE = Recipe(architecture="qwen3next", tiny=SIZES, metadata=_metadata, tensors=_tensors, blocks=BLOCKS)

"""`deepseek2` (DeepSeek-V2, -V2-Lite, -Coder-V2-Lite, -V3, GLM-4.7-Lite): attention over compressed cells, dense layers first,
then experts beside a shared one without a gate. Whether the router scores by softmax or sigmoid stands in the file."""

from dataclasses import replace

from engine.backend.base import Backend
from engine.errors import BadModel
from engine.model.base import Hyper, Tensors
from engine.model.layers.decoder import DecoderLayer, decoder
from engine.model.layers.experts import moe_spec, scoring
from engine.model.layers.mla import mla_spec

_GLM_LITE_BLOCKS, _GLM_LITE_VOCABULARY = (47, 48), 154880  # its files do not name their sigmoid


def describe(backend: Backend, hyper: Hyper, tensors: Tensors) -> None:
    """Record the trunk."""
    if hyper.number("attention.temperature_scale", 0.0):
        raise BadModel(f"{hyper.arch}.attention.temperature_scale: scores that depend on the position are not supported")
    vocabulary = tensors["token_embd.weight"].shape[0]
    glm_lite = hyper.integer("block_count") in _GLM_LITE_BLOCKS and vocabulary == _GLM_LITE_VOCABULARY
    moe = moe_spec(hyper, normalise=hyper.flag("expert_weights_norm", False),
                   scoring=scoring(hyper, "sigmoid" if glm_lite else "softmax"))
    routed = DecoderLayer(mla_spec(hyper), moe)
    dense = hyper.integer("leading_dense_block_count", 0, low=0, high=hyper.layers)
    decoder(backend, hyper, tensors, [replace(routed, moe=None)] * dense + [routed] * (hyper.layers - dense))

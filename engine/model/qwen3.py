"""`qwen3` (dense) and `qwen3moe` (Qwen3-30B-A3B): heads are normed before the rotation; softmax over all experts, chosen
weights add up to 1."""

from engine.backend.base import Backend
from engine.model.base import Hyper, Tensors
from engine.model.layers.attention import attention_spec
from engine.model.layers.decoder import DecoderLayer, decoder
from engine.model.layers.experts import moe_spec


def describe_dense(backend: Backend, hyper: Hyper, tensors: Tensors) -> None:
    """Record the trunk of `qwen3`."""
    layer = DecoderLayer(attention_spec(hyper, tensors, adjacent=False), head_norms=True)
    decoder(backend, hyper, tensors, [layer] * hyper.layers)


def describe_moe(backend: Backend, hyper: Hyper, tensors: Tensors) -> None:
    """Record the trunk of `qwen3moe`."""
    layer = DecoderLayer(attention_spec(hyper, tensors, adjacent=False), moe_spec(hyper, normalise=True), head_norms=True)
    decoder(backend, hyper, tensors, [layer] * hyper.layers)

"""`qwen2moe` (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B): biases on queries, keys and values; chosen experts keep their share of a
softmax over all; a shared expert with a gate."""

from engine.backend.base import Backend
from engine.model.base import Hyper, Tensors
from engine.model.layers.attention import attention_spec
from engine.model.layers.decoder import DecoderLayer, decoder
from engine.model.layers.experts import moe_spec


def describe(backend: Backend, hyper: Hyper, tensors: Tensors) -> None:
    """Record the trunk."""
    layer = DecoderLayer(attention_spec(hyper, tensors, adjacent=False), moe_spec(hyper, normalise=False))
    decoder(backend, hyper, tensors, [layer] * hyper.layers)

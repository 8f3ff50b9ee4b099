"""`olmoe` (OLMoE-1B-7B): queries and keys are normed over all heads at once; chosen experts keep their share of a softmax
over all."""

from dataclasses import replace

from engine.backend.base import Backend
from engine.model.base import Hyper, Tensors
from engine.model.layers.attention import attention_spec
from engine.model.layers.decoder import DecoderLayer, decoder
from engine.model.layers.experts import moe_spec


def describe(backend: Backend, hyper: Hyper, tensors: Tensors) -> None:
    """Record the trunk."""
    attention = replace(attention_spec(hyper, tensors, adjacent=False), whole_norms=True)
    layer = DecoderLayer(attention, moe_spec(hyper, normalise=False), head_norms=True)
    decoder(backend, hyper, tensors, [layer] * hyper.layers)

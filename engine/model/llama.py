"""`llama`: dense decoders, and Mixtral's form with experts. Rotary pairs are adjacent; chosen experts' weights add up to 1."""

from engine.backend.base import Backend
from engine.model.base import Hyper, Tensors
from engine.model.layers.attention import attention_spec
from engine.model.layers.decoder import DecoderLayer, decoder
from engine.model.layers.experts import moe_spec


def describe(backend: Backend, hyper: Hyper, tensors: Tensors) -> None:
    """Record the trunk."""
    moe = moe_spec(hyper, normalise=True) if hyper.integer("expert_count", 0, low=0) else None
    layer = DecoderLayer(attention_spec(hyper, tensors, adjacent=True), moe)
    decoder(backend, hyper, tensors, [layer] * hyper.layers)

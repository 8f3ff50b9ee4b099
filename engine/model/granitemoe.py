"""`granitemoe` (Granite 3.x 1b-a400m and 3b-a800m): factors for embedding, scores, both halves' output and logits; adjacent
rotary pairs; softmax over the chosen experts; perhaps a shared expert without a gate."""

from dataclasses import replace

from engine.backend.base import Backend
from engine.errors import BadModel
from engine.model.base import Hyper, Tensors
from engine.model.layers.attention import attention_spec
from engine.model.layers.decoder import DecoderLayer, decoder
from engine.model.layers.experts import moe_spec


def describe(backend: Backend, hyper: Hyper, tensors: Tensors) -> None:
    """Record the trunk. A factor of 0 means that there is none; logits are divided by theirs."""
    attention = attention_spec(hyper, tensors, adjacent=True)
    attention = replace(attention, scale=hyper.number("attention.scale", 0.0) or attention.scale)
    divisor = hyper.number("logit_scale")
    if divisor == 0:
        raise BadModel(f"{hyper.arch}.logit_scale: logits cannot be divided by 0")
    layer = DecoderLayer(attention, moe_spec(hyper, normalise=True),
                         residual_scale=hyper.number("residual_scale", 0.0) or 1.0)
    decoder(backend, hyper, tensors, [layer] * hyper.layers,
            embedding_scale=hyper.number("embedding_scale", 0.0) or 1.0, logit_scale=1 / divisor)

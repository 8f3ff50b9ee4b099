"""`gemma3` (270m to 27b, dense): norms before and after both halves, GELU, five sliding layers for one that sees everything.

Sliding layers have a rotation of their own, without the scaling of the others.
"""

from dataclasses import replace

from engine.backend.base import Backend
from engine.model.base import Hyper, Tensors
from engine.model.layers.attention import attention_spec, sliding, sliding_layers
from engine.model.layers.decoder import DecoderLayer, decoder

_LAYERS_OF_27B = 62  # the one size whose scores are not scaled by the width of a head


def describe(backend: Backend, hyper: Hyper, tensors: Tensors) -> None:
    """Record the trunk."""
    width, layers = hyper.integer("embedding_length"), hyper.layers
    attention = attention_spec(hyper, tensors, adjacent=False)
    if layers == _LAYERS_OF_27B:
        attention = replace(attention, scale=(width // attention.heads) ** -0.5)
    full = DecoderLayer(attention, activation="geglu", head_norms=True, post_norms=True)
    slides = [False] * layers
    short = full
    if hyper.integer("attention.sliding_window", 0, low=0):
        rope = replace(attention.rope, base=hyper.number("rope.freq_base_swa", 10000.0), scale=1.0, yarn=None)
        short = replace(full, attention=sliding(attention, hyper, rope))
        slides = sliding_layers(hyper, period=6)
    decoder(backend, hyper, tensors, [short if slide else full for slide in slides],
            embedding_scale=width**0.5, soft_cap=hyper.number("final_logit_softcapping", 0.0, low=0.0))

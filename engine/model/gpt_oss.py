"""`gpt-oss` (20b, 120b): sliding and full layers in turns, a sink in every softmax, yarn, biases everywhere, a clamped SwiGLU,
softmax over the chosen logits. The norm before the feed-forward is stored as `post_attention_norm`."""

from dataclasses import replace

from engine.backend.base import Backend
from engine.model.base import Hyper, Tensors
from engine.model.layers.attention import attention_spec, sliding, sliding_layers
from engine.model.layers.decoder import DecoderLayer, decoder
from engine.model.layers.experts import moe_spec


def describe(backend: Backend, hyper: Hyper, tensors: Tensors) -> None:
    """Record the trunk."""
    attention = attention_spec(hyper, tensors, adjacent=False)
    base = hyper.number("rope.freq_base_swa", attention.rope.base)
    moe = moe_spec(hyper, normalise=False, scoring="selected_softmax", activation="clamped_swiglu")
    full = DecoderLayer(attention, moe, ffn_norm="post_attention_norm")
    short = replace(full, attention=sliding(attention, hyper, replace(attention.rope, base=base)))
    decoder(backend, hyper, tensors, [short if slides else full for slides in sliding_layers(hyper, period=2)])

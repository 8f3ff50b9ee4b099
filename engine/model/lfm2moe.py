"""`lfm2moe` (LFM2-8B-A1B): short convolutions, and attention on the layers that have key heads; dense layers first, then
experts that are chosen by sigmoid and a bias. The norm before the head is stored as `token_embd_norm`."""

from engine.backend.base import Backend, ShortConv
from engine.errors import BadModel
from engine.model.base import Hyper, Tensors
from engine.model.layers.attention import attention_spec
from engine.model.layers.decoder import DecoderLayer, decoder
from engine.model.layers.experts import moe_spec, scoring


def describe(backend: Backend, hyper: Hyper, tensors: Tensors) -> None:
    """Record the trunk."""
    if hyper.integer("attention.sliding_window", 0, low=0):
        raise BadModel(f"{hyper.arch}.attention.sliding_window: windows on some layers are not supported")
    moe = moe_spec(hyper, normalise=True, scoring=scoring(hyper, "sigmoid"))
    convolution = ShortConv(hyper.integer("shortconv.l_cache", low=2, high=64))
    dense = hyper.integer("leading_dense_block_count", 0, low=0, high=hyper.layers)
    layers = []
    for number, kv_heads in enumerate(hyper.of_layers("attention.head_count_kv")):
        mixer = attention_spec(hyper, tensors, adjacent=False, layer=number) if kv_heads else convolution
        layers.append(DecoderLayer(mixer, moe if number >= dense else None, head_norms=True))
    decoder(backend, hyper, tensors, layers, output_norm="token_embd_norm")

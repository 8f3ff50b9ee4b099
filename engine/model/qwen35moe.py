"""`qwen35moe` (Qwen3.5- and 3.6-35B-A3B, Ornith 35B-A3B): delta nets with a SiLU gate and gated attention in turns, experts
with a gated shared one.

Value heads are in the file's own order: head j reads key head j mod key heads. A trailing draft block is left alone, and the
sections of the rotation, which matter to images only.
"""

from collections.abc import Callable
from dataclasses import replace

from engine.backend.base import Backend, DeltaNet, Weights
from engine.model.base import Hyper, Tensors
from engine.model.layers.attention import attention_spec
from engine.model.layers.decoder import DecoderLayer, decoder
from engine.model.layers.delta_net import delta_net_spec, delta_net_weights, recurrent_layers
from engine.model.layers.experts import moe_spec

_INTERVAL = 4  # every fourth layer is attention, unless the file says otherwise


def describe(backend: Backend, hyper: Hyper, tensors: Tensors) -> None:
    """Record the trunk."""
    describe_with(backend, hyper, tensors, delta_net_spec(hyper, "silu"), delta_net_weights)


def describe_with(backend: Backend, hyper: Hyper, tensors: Tensors, delta_net: DeltaNet,
                  weights: Callable[[Tensors, int], Weights]) -> None:
    """Record the trunk with the delta net of a sister architecture, stored in the way of that."""
    attention = replace(attention_spec(hyper, tensors, adjacent=False), gated=True)
    full = DecoderLayer(attention, moe_spec(hyper, normalise=True), head_norms=True, ffn_norm="post_attention_norm")
    recurrent = replace(full, attention=delta_net, delta_net_weights=weights)
    decoder(backend, hyper, tensors,
            [recurrent if is_recurrent else full for is_recurrent in recurrent_layers(hyper, interval=_INTERVAL)])

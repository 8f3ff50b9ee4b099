"""Gated delta nets from the common metadata keys: sizes, which layers are recurrent, and tensor names."""

from typing import Literal

from engine.backend.base import DeltaNet
from engine.errors import BadModel
from engine.gguf import Tensor
from engine.model.base import Hyper, Tensors

DELTA_NET = {
    "qkv": "attn_qkv.weight", "z": "attn_gate.weight", "alpha": "ssm_alpha.weight", "beta": "ssm_beta.weight", "a": "ssm_a",
    "dt": "ssm_dt.bias", "conv": "ssm_conv1d.weight", "norm": "ssm_norm.weight", "output": "ssm_out.weight"}


def recurrent_layers(hyper: Hyper, *, interval: int | None = None) -> list[bool]:
    """Which layers are delta nets: all but the last of each interval, unless the file lists them; `interval` is the default."""
    key = "attention.recurrent_layers"
    if hyper.has(key):
        values = hyper.per_layer(key, hyper.layers)
        if len(values) < hyper.layers:
            raise BadModel(f"{hyper.arch}.{key}: {len(values)} values for {hyper.layers} layers")
        return [bool(value) for value in values]
    interval = hyper.integer("full_attention_interval", interval)
    return [(layer + 1) % interval != 0 for layer in range(hyper.layers)]


def delta_net_spec(hyper: Hyper, output_gate: Literal["sigmoid", "silu"], *, neighbours: bool = False) -> DeltaNet:
    """The delta net that all recurrent layers are."""
    spec = DeltaNet(
        key_heads=hyper.integer("ssm.group_count", high=1 << 12), value_heads=hyper.integer("ssm.time_step_rank", high=1 << 12),
        head_dim=hyper.integer("ssm.state_size", high=1 << 12), conv_taps=hyper.integer("ssm.conv_kernel", low=2, high=64),
        eps=hyper.number("attention.layer_norm_rms_epsilon", low=0.0), output_gate=output_gate, neighbours=neighbours)
    if hyper.integer("ssm.inner_size") != spec.value_heads * spec.head_dim:
        raise BadModel(f"{hyper.arch}.ssm.inner_size: expected {spec.value_heads} heads of {spec.head_dim}")
    return spec


def delta_net_weights(tensors: Tensors, layer: int) -> dict[str, Tensor]:
    """Tensors of one layer by role, where each has a tensor of its own."""
    return tensors.block(layer, DELTA_NET)

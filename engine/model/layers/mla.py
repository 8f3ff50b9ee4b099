"""Attention over compressed cells from the metadata keys of `deepseek2`, and its tensor names in both layouts of such files.

An older file has one tensor with the key and value rows of every head, and the sizes of a head under the common keys; a newer
one has a tensor of each, and describes under the common keys what is cached.
"""

from dataclasses import replace
from math import log

from engine.backend.base import Mla
from engine.errors import BadModel
from engine.gguf import Tensor
from engine.model.base import Hyper, Tensors
from engine.model.layers.attention import rope_spec

_COMMON = {"kv_a": "attn_kv_a_mqa.weight", "kv_a_norm": "attn_kv_a_norm.weight", "output": "attn_output.weight"}
_QUERIES = ({"q_a": "attn_q_a.weight", "q_a_norm": "attn_q_a_norm.weight", "q_b": "attn_q_b.weight"},
            {"q": "attn_q.weight"})
_PROJECTIONS = ({"k_b": "attn_k_b.weight", "v_b": "attn_v_b.weight"}, {"kv_b": "attn_kv_b.weight"})


def mla_spec(hyper: Hyper) -> Mla:
    """Sizes of a head, and the scale of scores with yarn's share in it."""
    newer = bool(hyper.integer("attention.key_length_mla", 0, low=0))
    suffix = "_mla" if newer else ""
    head_dim = hyper.integer(f"attention.key_length{suffix}", high=1 << 12)
    turned = hyper.integer("rope.dimension_count", high=head_dim - 1)
    rope, sharpening = rope_spec(hyper, turned, adjacent=True), 1.0
    if rope.yarn is None and rope.scale != 1:
        raise BadModel(f"{hyper.arch}.rope.scaling.type: attention over compressed cells is stretched by yarn or not at all")
    if rope.yarn is not None:
        # files hold a tenth of the multiplier; where there is one, the cosines are not stretched but the scores
        multiplier = hyper.number("rope.scaling.yarn_log_multiplier", 0.0) / 0.1
        stretch = log(max(1 / rope.scale, 1.0))
        magnitude = rope.yarn.magnitude / (1 + 0.1 * stretch) if multiplier else rope.yarn.magnitude
        rope = replace(rope, yarn=replace(rope.yarn, magnitude=magnitude))
        sharpening = (magnitude * (1 + 0.1 * multiplier * stretch)) ** 2
    return Mla(
        heads=hyper.integer("attention.head_count"), latent=hyper.integer("attention.kv_lora_rank", high=1 << 16),
        content_dim=head_dim - turned, value_dim=hyper.integer(f"attention.value_length{suffix}", high=1 << 12), rope=rope,
        scale=sharpening * head_dim**-0.5, eps=hyper.number("attention.layer_norm_rms_epsilon", low=0.0),
        query_rank=hyper.integer("attention.q_lora_rank", 0, low=0, high=1 << 16))


def mla_weights(tensors: Tensors, layer: int) -> dict[str, Tensor]:
    """Tensors of one layer by role, in whichever layout they are."""
    chosen = dict(_COMMON)
    for one, other in (_QUERIES, _PROJECTIONS):
        first = tensors.get(f"blk.{layer}.{next(iter(one.values()))}")
        chosen |= other if first is None else one
    return tensors.block(layer, chosen)

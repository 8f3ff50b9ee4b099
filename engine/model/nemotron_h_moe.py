"""`nemotron_h_moe` (Nemotron 3 Nano and Super): a layer is one of Mamba2, attention without positions, and experts with a
squared ReLU beside a shared one; in larger models experts work in a narrower space. A trailing draft block is left alone."""

from dataclasses import replace
from typing import Any

from engine.backend.base import Attention, Backend, Mamba2, Moe
from engine.errors import BadModel
from engine.model.base import Hyper, Tensors, routed_experts
from engine.model.layers.attention import attention_spec, attention_weights
from engine.model.layers.decoder import epsilon
from engine.model.layers.experts import moe_spec, scoring

_MAMBA = {"input": "ssm_in.weight", "conv": "ssm_conv1d.weight", "dt": "ssm_dt.bias", "a": "ssm_a", "d": "ssm_d",
          "norm": "ssm_norm.weight", "output": "ssm_out.weight"}
_MAMBA_EXTRAS = {"conv_bias": "ssm_conv1d.bias"}
_SHARED = {"up": "ffn_up_shexp.weight", "down": "ffn_down_shexp.weight"}
_LATENT = {"down": "ffn_latent_down.weight", "up": "ffn_latent_up.weight"}


def describe(backend: Backend, hyper: Hyper, tensors: Tensors) -> None:
    """Record the trunk."""
    embedding, output, eps = tensors["token_embd.weight"], tensors.head(), epsilon(hyper)
    if output.shape != embedding.shape:
        raise BadModel(f"{output.name}: its shape is {output.shape}, that of {embedding.name} is {embedding.shape}")
    x, latent = backend.embed(embedding), hyper.integer("moe_latent_size", 0, low=0)
    for layer, spec in enumerate(layer_specs(hyper, tensors)):
        h = backend.norm(x, tensors[f"blk.{layer}.attn_norm.weight"], eps=eps)
        match spec:
            case Mamba2():
                y = backend.mamba2(h, spec, tensors.block(layer, _MAMBA, _MAMBA_EXTRAS))
            case Attention():
                y = backend.attention(h, spec, attention_weights(tensors, layer, spec, head_norms=False))
            case Moe():
                y = _experts(backend, h, layer, tensors, spec, latent=latent)
        x = backend.add(x, y)
    backend.head(backend.norm(x, tensors["output_norm.weight"], eps=eps), output)


def layer_specs(hyper: Hyper, tensors: Tensors) -> list[Mamba2 | Attention | Moe]:
    """What every layer is: without key heads and a feed-forward Mamba2, without a feed-forward attention, else experts."""
    moe = moe_spec(hyper, normalise=hyper.flag("expert_weights_norm", False), scoring=scoring(hyper, "sigmoid"),
                   activation="squared_relu")
    mamba, found = mamba2_spec(hyper), []
    kinds = zip(hyper.of_layers("attention.head_count_kv"), hyper.of_layers("feed_forward_length"), strict=True)
    for layer, (kv_heads, ff) in enumerate(kinds):
        if ff:
            found.append(moe)
        elif kv_heads:
            attention = attention_spec(hyper, tensors, adjacent=False, layer=layer)
            found.append(replace(attention, rope=None, scale=hyper.number("attention.scale", 0.0) or attention.scale))
        else:
            found.append(mamba)
    return found


def mamba2_spec(hyper: Hyper) -> Mamba2:
    """The recurrence that all layers of its kind are."""
    inner, heads = hyper.integer("ssm.inner_size"), hyper.integer("ssm.time_step_rank", high=1 << 12)
    groups = hyper.integer("ssm.group_count", high=heads)
    if inner % heads or heads % groups:
        raise BadModel(f"{hyper.arch}.ssm.inner_size: {inner} values in {heads} heads and {groups} groups do not go together")
    return Mamba2(heads=heads, head_dim=inner // heads, state_size=hyper.integer("ssm.state_size", high=1 << 12),
                  groups=groups, conv_taps=hyper.integer("ssm.conv_kernel", low=2, high=64), eps=epsilon(hyper))


def _experts(backend: Backend, h: Any, layer: int, tensors: Tensors, spec: Moe, *, latent: int) -> Any:
    """Routed experts, on `latent` values of a token if that is not 0, and the shared one on the full width."""
    narrow, change = h, tensors.block(layer, _LATENT if latent else {})
    if latent:
        narrow = backend.project(h, change["down"], width=latent, name="latent")
    y = backend.moe(narrow, spec, routed_experts(tensors, layer, gated=False), router_input=h)
    if latent:
        y = backend.project(y, change["up"], width=h.width, name="widened")
    if tensors.get(f"blk.{layer}.{_SHARED['down']}") is not None:
        shared = backend.feed_forward(h, tensors.block(layer, _SHARED), activation=spec.activation)
        y = backend.add(y, shared)
    return y

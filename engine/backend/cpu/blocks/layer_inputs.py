"""Inputs that every layer gets of its own: embeddings of the token, mixed with what the first stream says, read by a gate."""

from engine.backend import base
from engine.backend.cpu.blocks.heads import place_heads
from engine.backend.cpu.blocks.moe import activate


def make(b, x, spec: base.LayerInputs, w: base.Weights):
    """x f32 [T, D] -> f32 [T, layers * width]: (norm(projection · x / √D) + √width · table[token]) / √2."""
    out = b.linear(x, w["projection"], b.rows("layer_inputs", spec.layers * spec.width))
    b.scale(out, x.width**-0.5)
    place_heads(b, out, spec.layers, spec.width, norm=w["norm"], eps=spec.eps)
    own = b.lookup(w["table"], b.rows("layer_tokens", out.width), scale=spec.width**0.5)
    return b.scale(b.add(out, own), 0.5**0.5)


def read(b, x, inputs, spec: base.LayerInputs, w: base.Weights, *, layer: int):
    """x f32 [T, D] -> f32 [T, D]: norm(output · (gelu(gate · x) * the layer's inputs))."""
    gate = b.linear(x, w["gate"], b.rows("layer_gate", spec.width))
    hidden = activate(b, gate, inputs.columns(layer * spec.width, spec.width), "layer_hidden", "geglu")
    out = b.linear(hidden, w["output"], b.rows("block_out", w["output"].shape[0]))
    return b.norm(out, w["norm"], eps=spec.eps)

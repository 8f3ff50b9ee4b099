"""Gated delta net: projections, short convolution, recurrence with its gated norm, output."""

from dataclasses import dataclass

import numpy as np

from engine.backend import base
from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.memory import float_values
from engine.backend.cuda.products import Product, Source, products
from engine.backend.cuda.rows import Rows, Target
from engine.errors import BadModel


@dataclass
class DeltaNetBlock:
    """See `base.DeltaNet`. State: conv f32 [taps - 1, channels] as projected, oldest first; S f32 [value heads, dim, dim]."""

    b: object
    spec: base.DeltaNet
    source: Source
    projections: dict[str, Product]
    conv_weights: Buffer  # f32 [taps, channels]
    vectors: dict[str, Buffer]
    history: Buffer
    state: Buffer
    qkv: Buffer
    mixed: Buffer
    output: Product
    target: Target

    def window(self, tokens: int) -> list[Launch]:
        """Launches for windows of up to `tokens`."""
        b, s, found = self.b, self.spec, self.projections
        channels, width = (2 * s.key_heads + s.value_heads) * s.head_dim, s.value_heads * s.head_dim
        return [
            *products(b.window, self.source, list(found.values()), tokens, multiprocessors=b.multiprocessors),
            convolution_launch(b.window, found["qkv"].out, self.conv_weights, self.history, self.qkv, channels=channels,
                               taps=s.conv_taps, dilation=1, add=False),
            Launch("delta_net", (("DIM", str(s.head_dim)),), "recurrence", (s.value_heads, 1, 1), 4 * s.head_dim, 0, {
                "window": b.window, "qkv": self.qkv, "alpha": found["alpha"].out, "beta": found["beta"].out,
                "decay": self.vectors["a"], "offset": self.vectors["dt"], "gate": found["z"].out, "norm": self.vectors["norm"],
                "key_heads": s.key_heads, "value_heads": s.value_heads, "silu": int(s.output_gate == "silu"), "eps": s.eps,
                "state": self.state, "out": self.mixed}),
            *products(b.window, Source(self.mixed, width, width), [Product(self.output.weight, self.target.out)], tokens,
                      multiprocessors=b.multiprocessors, accumulate=self.target.accumulate, scale=self.target.scale)]


def convolution_launch(window: Buffer, x: Buffer, weights: Buffer, history: Buffer, out: Buffer, *, channels: int, taps: int,
                       dilation: int, add: bool) -> Launch:
    """Causal convolution of x f32 [T, channels] into out, or added to it."""
    return Launch("delta_net", (("DIM", "128"),), "convolution", (-(-channels // 128), 1, 1), 128, 0, {
        "window": window, "x": x, "weights": weights, "history": history, "channels": channels, "taps": taps,
        "dilation": dilation, "add": int(add), "out": out})


def by_tap(tensor) -> np.ndarray:
    """Weights of a convolution [channels, taps] as f32 [taps, channels]."""
    return np.ascontiguousarray(float_values(tensor).T)


def delta_net(b, x: Rows, spec: base.DeltaNet, w: base.Weights) -> Rows:
    """Record the block on rows x f32 [T, D]: rows f32 [T, D]."""
    dim, heads = spec.head_dim, spec.value_heads
    if dim % 32 or dim > 256 or heads % spec.key_heads:
        raise BadModel(f"{w['qkv'].name}: heads of {dim} values, {heads} of them for {spec.key_heads} key heads: CUDA has "
                       "multiples of 32 up to 256")
    if spec.neighbours:
        raise BadModel(f"{w['qkv'].name}: CUDA has no kernel for value heads beside those that read the same key head")
    channels = (2 * spec.key_heads + heads) * dim
    sizes = {"qkv": channels, "z": heads * dim, "alpha": heads, "beta": heads}
    projections = {role: Product(b.weight(w[role]), b.scratch_rows(f"delta_{role}", size))
                   for role, size in sizes.items()}
    layer, rows = w["qkv"].name, b.new_rows("block_out", w["output"].shape[0])
    rows.target = Target(rows.buffer)
    b.record(DeltaNetBlock(
        b, spec, b.source(x), projections, b.memory.array(w["conv"].name, by_tap(w["conv"])),
        {role: b.memory.vector(w[role]) for role in ("a", "dt", "norm")},
        b.state_array(f"{layer}.conv", (spec.conv_taps - 1, channels)).buffer,
        b.state_array(f"{layer}.state", (heads, dim, dim)).buffer, b.scratch_rows("delta_convolved", channels),
        b.scratch_rows("delta_out", heads * dim), Product(b.weight(w["output"]), rows.buffer), rows.target))
    return rows

"""Mamba2 block: projection, short convolution, recurrence, gate and norm by group, output."""

from engine.backend import base
from engine.backend.cpu import mamba2 as kernels
from engine.backend.cpu.blocks.convolution import convolve
from engine.backend.cpu.blocks.moe import activate
from engine.errors import BadModel


def mamba2(b, x, spec: base.Mamba2, w: base.Weights):
    """x f32 [T, D] -> f32 [T, D]. State: conv f32 [taps - 1, channels] as projected, oldest first; S f32 [heads, state size,
    head dim]."""
    inner, channels, heads = spec.heads * spec.head_dim, spec.channels, spec.heads
    if spec.head_dim % 16 or channels % 16:
        raise BadModel(f"{w['input'].name}: heads of {spec.head_dim} values, {channels} channels: expected multiples of 16")
    gate, projected, dt = b.rows("mamba_gate", inner), b.rows("mamba_projected", channels), b.rows("mamba_dt", heads)
    start = 0
    for out in (gate, projected, dt):
        b.linear(x, w["input"], out, row_range=(start, start + out.width), barrier=out is dt)
        start += out.width

    layer = w["input"].name
    history = b.state_array(f"{layer}.conv", (spec.conv_taps - 1, channels))
    xbc = convolve(b, projected, w["conv"], history, b.rows("mamba_xbc", channels), dilation=1, add=False,
                   bias=w.get("conv_bias"))
    state = b.state_array(f"{layer}.state", (heads, spec.state_size, spec.head_dim))
    out = b.rows("mamba_out", inner)
    b.program.add(kernels.recurrence, {
        kernels.XBC: xbc.address, kernels.DT: dt.address, kernels.DT_BIAS: b.vector(w["dt"]), kernels.A: b.vector(w["a"]),
        kernels.D: b.vector(w["d"]), kernels.STATE: state.ctypes.data, kernels.OUT: out.address, kernels.HEADS: heads,
        kernels.HEAD_DIM: spec.head_dim, kernels.STATE_SIZE: spec.state_size, kernels.GROUPS: spec.groups})
    gated = activate(b, gate, b.written(out), "mamba_gated", "swiglu")
    normed = b.norm(gated, w["norm"], eps=spec.eps, parts=spec.groups, name="mamba_normed")
    return b.linear(normed, w["output"], b.rows("block_out", w["output"].shape[0]))

"""Gated delta net block: projections, short convolution, recurrence, gated norm, output."""

from engine.backend import base
from engine.backend.cpu import delta_net as kernels
from engine.backend.cpu.blocks.convolution import convolve
from engine.backend.cpu.program import float_bits
from engine.errors import BadModel


def delta_net(b, x, spec: base.DeltaNet, w: base.Weights):
    """x f32 [T, D] -> f32 [T, D]. State: conv f32 [taps - 1, channels] as projected, oldest first; S f32 [value heads,
    key dim, value dim]."""
    dim, heads = spec.head_dim, spec.value_heads
    if dim % 16 or heads % spec.key_heads:
        raise BadModel(f"{w['qkv'].name}: heads of {dim} values, {heads} of them for {spec.key_heads} key heads: expected "
                       "multiples of 16 and of the key heads")
    channels = (2 * spec.key_heads + heads) * dim
    projected, gate = b.rows("delta_projected", channels), b.rows("delta_gate", heads * dim)
    decay, beta = b.rows("delta_decay", heads), b.rows("delta_beta", heads)
    for role, out in (("alpha", decay), ("beta", beta), ("z", gate)):
        b.linear(x, w[role], out, barrier=False)
    b.linear(x, w["qkv"], projected)

    layer = w["qkv"].name
    b.program.add(kernels.gates, {
        kernels.GATES_ALPHA: decay.address, kernels.GATES_BETA: beta.address, kernels.GATES_A: b.vector(w["a"]),
        kernels.GATES_DT: b.vector(w["dt"]), kernels.GATES_HEADS: heads}, barrier=False)
    history = b.state_array(f"{layer}.conv", (spec.conv_taps - 1, channels))
    qkv = convolve(b, projected, w["conv"], history, b.rows("delta_qkv", channels), dilation=1, add=False)

    state = b.state_array(f"{layer}.state", (heads, dim, dim))
    out = b.rows("delta_out", heads * dim)
    scratch, piece = b.program.worker_scratch("delta_heads", 8 * dim)
    b.program.add(kernels.recurrence, {
        kernels.QKV: qkv.address, kernels.DECAY: decay.address, kernels.BETA: beta.address,
        kernels.STATE: state.ctypes.data, kernels.OUT: out.address, kernels.KEY_HEADS: spec.key_heads,
        kernels.VALUE_HEADS: heads, kernels.DIM: dim, kernels.SCRATCH: scratch, kernels.SCRATCH_BYTES: piece,
        kernels.NEIGHBOURS: int(spec.neighbours)})
    b.program.add(kernels.gated_norm_function(spec.output_gate), {
        kernels.NORM_ROWS: out.address, kernels.NORM_GATE: gate.address, kernels.NORM_WEIGHT: b.vector(w["norm"]),
        kernels.NORM_HEADS: heads, kernels.NORM_DIM: dim, kernels.NORM_EPS: float_bits(spec.eps)})
    b.written(out)
    return b.linear(out, w["output"], b.rows("block_out", w["output"].shape[0]))

"""Hyper-connections: a block reads a mixture of the residual streams, and its output is added to each by a weight.

The weights come from the same normed streams as the mixture.
"""

from engine.backend import base
from engine.backend.cpu import hyper as kernels
from engine.backend.cpu import rows
from engine.backend.cpu.program import float_bits
from engine.errors import BadModel


def read(b, streams, spec: base.HyperConnection, w: base.Weights):
    """streams f32 [T, streams * D] -> (the block's input f32 [T, D], write weights f32 [T, streams] or None)."""
    n = spec.streams
    if streams.width % (16 * n):
        raise BadModel(f"{w['norm'].name}: {n} streams of {streams.width // n} values, expected a multiple of 16")
    width = streams.width // n
    normed = b.norm(streams, w["norm"], eps=spec.eps, parts=n, name="hyper_normed")
    low = b.rows("hyper_low", w["down"].shape[0])
    inject = b.linear(normed, w["inject"], b.rows("hyper_inject", n), barrier=False) if "inject" in w else None
    b.linear(normed, w["down"], low)
    b.program.add(rows.scaled_silu, {
        rows.UNARY_A: low.address, rows.UNARY_OUT: low.address, rows.UNARY_WIDTH: low.width, rows.UNARY_PER_TOKEN: 1,
        rows.UNARY_FACTOR: float_bits(1 / n)})
    gate = b.linear(b.written(low), w["up"], b.rows("hyper_gate", streams.width))
    out = b.rows("hyper_mixed", width)
    b.program.add(kernels.mix_streams, {
        kernels.MIX_GATE: gate.address, kernels.MIX_NORMED: normed.address, kernels.MIX_OUT: out.address,
        kernels.MIX_WIDTH: width, kernels.MIX_STREAMS: n, kernels.MIX_INJECT: inject.address if inject else 0})
    return b.written(out), inject


def write(b, streams, y, inject):
    """Add y f32 [T, D] to every stream, times that stream's weight, in place."""
    b.program.add(kernels.write_streams, {
        kernels.WRITE_STREAM: streams.address, kernels.WRITE_BLOCK: y.address, kernels.WRITE_INJECT: inject.address,
        kernels.WRITE_WIDTH: y.width, kernels.WRITE_STREAMS: inject.width})
    return b.written(streams)

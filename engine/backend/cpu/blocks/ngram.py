"""N-gram embeddings: rows of a hashed table for the last tokens, gated and convolved into every residual stream."""

import numpy as np

from engine.backend import base
from engine.backend.cpu import float_matmul, unpack
from engine.backend.cpu import ngram as kernels
from engine.backend.cpu.blocks.convolution import convolve
from engine.backend.cpu.program import float_bits
from engine.errors import BadModel


def ngram(b, streams, spec: base.NgramTable, w: base.Weights):
    """streams f32 [T, streams * D], in place. State: normed values f32 [(taps - 1) * dilation, streams * D], oldest first."""
    n, width = spec.streams, streams.width // spec.streams
    table = gather(b, spec, w["table"])
    value = b.linear(table, w["value"], b.rows("ngram_value", width), barrier=False)
    key = b.linear(table, w["key"], b.rows("ngram_key", streams.width))
    added = b.rows("ngram_normed", streams.width)
    scratch, piece = b.program.worker_scratch("ngram_stream", 4 * width)
    b.program.add(kernels.gate_ngrams, {
        kernels.GATE_KEY: key.address, kernels.GATE_STREAM: streams.address, kernels.GATE_VALUE: value.address,
        kernels.GATE_OUT: added.address, kernels.GATE_NORM_KEY: b.vector(w["norm_key"]),
        kernels.GATE_NORM_QUERY: b.vector(w["norm_query"]), kernels.GATE_NORM_OUT: b.vector(w["norm_conv"]),
        kernels.GATE_WIDTH: width, kernels.GATE_STREAMS: n, kernels.GATE_EPS: float_bits(spec.eps),
        kernels.GATE_SCRATCH: scratch, kernels.GATE_SCRATCH_BYTES: piece})
    b.written(added)
    history = b.state_array(f"{w['conv'].name}.history", ((spec.conv_taps - 1) * spec.dilation, streams.width))
    return convolve(b, added, w["conv"], history, streams, dilation=spec.dilation, add=True)


def gather(b, spec: base.NgramTable, table):
    """The table's rows for every token, f32 [T, heads * row width]."""
    heads, name = len(spec.head_sizes), table.format.name
    if name not in unpack.FORMATS and name not in float_matmul.WEIGHT_BYTES:
        raise BadModel(f"{table.name}: the format {name} has no kernel on the CPU")
    if table.scale is not None:
        raise BadModel(f"{table.scale.name}: a table that is looked up has no products to scale")
    out = b.rows("ngram_rows", heads * spec.row_width)
    multipliers, sizes, offsets = (
        b.program.keep(np.array(values, np.int64)) for values in (spec.multipliers, spec.head_sizes, spec.head_offsets))
    b.program.add(kernels.gather_function(name), {
        kernels.HISTORY: b.history.ctypes.data, kernels.RESET: spec.reset_token, kernels.MULTIPLIERS: multipliers,
        kernels.SIZES: sizes, kernels.OFFSETS: offsets, kernels.HEADS: heads, kernels.PER_NGRAM: spec.heads_per_ngram,
        kernels.TABLE: b.program.keep(table.data), kernels.ROW_BYTES: table.data.shape[-1],
        kernels.ROW_WIDTH: spec.row_width, kernels.OUT: out.address,
        kernels.SCRATCH: b.program.worker_scratch("ngram_row", kernels.SCRATCH_BYTES)[0]})
    return b.written(out)

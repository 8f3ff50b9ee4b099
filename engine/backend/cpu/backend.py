"""The CPU backend: records a model's blocks as a program of kernels and runs it window by window.

Owns the program, the sequence state's arrays and the tokens' block; the caller owns positions. One thread drives it.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from engine.backend import base, shapes
from engine.backend.cpu import isa, matmul, quantize, rows, unpack
from engine.backend.cpu.block_format import ACTIVATION_SHAPES
from engine.backend.cpu.blocks import attention, delta_net, hyper, layer_inputs, mamba2, mla, moe, ngram, short_conv
from engine.backend.cpu.float_matmul import WEIGHT_BYTES, float_matmul_function
from engine.backend.cpu.kernel import WINDOW_OUT_FIRST
from engine.backend.cpu.pool import Pool
from engine.backend.cpu.program import Program, float_bits
from engine.backend.cpu.values import float_array
from engine.backend.rotation import rotation_table
from engine.errors import BadModel, Internal
from engine.gguf import Tensor

_TABLE_SLICE = 4096  # positions
_FLOAT_ACTIVATION = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


class Rows:
    """float32 activations [max rows * per token, width] of the window; `version` counts how often they were written."""

    def __init__(self, name: str, array: np.ndarray, *, per_token: int = 1) -> None:
        self.name, self.array, self.per_token = name, array, per_token
        self.version = 0

    @property
    def width(self) -> int:
        """Elements of a row."""
        return int(self.array.shape[1])

    @property
    def address(self) -> int:
        """Where the first row starts."""
        return int(self.array.ctypes.data)

    @property
    def row_bytes(self) -> int:
        """From the start of a row to that of the next."""
        return int(self.array.strides[0])

    def columns(self, first: int, count: int) -> "Rows":
        """A view of some columns, for kernels that step by `row_bytes`."""
        return Rows(self.name, self.array[:, first:first + count], per_token=self.per_token)


class CpuBackend:
    """Implements `backend.base.Backend`."""

    name, kv_type = "cpu", "f32"
    holds_weights = False  # they are read where they lie in the mapped file

    def __init__(self, *, workers: int, max_context: int, max_rows: int) -> None:
        self.max_context, self.max_rows = max_context, max_rows
        self.pool = Pool(workers)
        self.program = Program(self.pool, max_rows)
        self.state: list[base.StateArray] = []
        self.usage: list[np.ndarray] = []  # int64 [experts], routes that chose each, one array a layer
        self.tokens = self.program.memory((max_rows,), np.int32)
        self.history = self.program.memory((max_context,), np.int32)
        self.state.append(base.StateArray("tokens", self.history, positional=True))
        self.logits: np.ndarray | None = None  # f32 [max rows, vocabulary]
        self._activations: dict[tuple[str, str], tuple[int, tuple[int, int, int, int]]] = {}
        self._ropes: dict[base.Rope, np.ndarray] = {}
        self._unfilled: list[Callable[[], None]] = []
        self._vectors: dict[str, int] = {}

    @property
    def isa(self) -> str:
        """The instruction set that the kernels were generated for."""
        return isa.tier()

    @property
    def workers(self) -> int:
        """Threads of the pool."""
        return self.pool.workers

    def plan(self) -> list[str]:
        """What the log says of the backend before it takes its memory."""
        pinned = f"pinned to CPUs {self.pool.pinned}" if self.pool.pinned else "not pinned"
        return [f"pool of {self.pool.workers}, {pinned}"]

    @property
    def n_bytes(self) -> int:
        """Memory of state and scratch: what the windows of a full context will have taken from the system."""
        return self.program.n_bytes

    # --- memory and weights ---------------------------------------------------------------------------------------
    def rows(self, name: str, width: int, *, per_token: int = 1) -> Rows:
        """Activations under a name that all layers share."""
        return Rows(name, self.program.scratch(name, (self.max_rows * per_token, width)), per_token=per_token)

    def state_array(self, name: str, shape: tuple[int, ...], *, positional: bool = False,
                    cells_per_row: int = 1) -> np.ndarray:
        """A float32 array of the sequence's state."""
        array = self.program.memory(shape)
        self.state.append(base.StateArray(name, array, positional, cells_per_row))
        return array

    def vector(self, tensor: Tensor) -> int:
        """The address of a small float tensor as f32."""
        if tensor.name not in self._vectors:
            self._vectors[tensor.name] = self.program.keep(float_array(tensor))
        return self._vectors[tensor.name]

    def rope_table(self, rope: base.Rope) -> int:
        """Address of cosines and sines, f32 [context, 2, dims / 2], which `prepare` fills."""
        if rope not in self._ropes:
            self._ropes[rope] = self.program.memory((self.max_context, 2, rope.dims // 2))
            self.later(partial(self._fill_rope_table, rope))
        return int(self._ropes[rope].ctypes.data)

    def _fill_rope_table(self, rope: base.Rope) -> None:
        for start in range(0, self.max_context, _TABLE_SLICE):  # angles of all positions at once would be large
            positions = range(start, min(start + _TABLE_SLICE, self.max_context))
            self._ropes[rope][start:positions.stop] = rotation_table(rope, positions)

    def later(self, fill: Callable[[], None]) -> None:
        """Have `prepare` write something into the memory of the description."""
        self._unfilled.append(fill)

    def prepare(self) -> None:
        """Fill the tables and compile. Until then a description costs nothing, so that it can be weighed before it does."""
        while self._unfilled:
            self._unfilled.pop()()
        self.program.compile()

    # --- operations -----------------------------------------------------------------------------------------------
    def written(self, x: Rows) -> Rows:
        """Say that a kernel wrote x, so earlier roundings of it are void."""
        for key in [key for key in self._activations if key[0] == x.name]:
            del self._activations[key]
        return x

    def activations(self, x: Rows, kind: str) -> tuple[int, int, int, int]:
        """Addresses of codes, scales, sums and weighted sums of x in one activation kind, rounded at most once."""
        if kind == "f32":
            return x.address, 0, 0, 0
        key = (x.name, kind)
        if key not in self._activations:
            n, width = self.max_rows * x.per_token, x.width
            if kind in ("f16", "bf16"):
                codes = self.program.scratch(f"{x.name}.{kind}", (n, width))
                addresses = (codes.ctypes.data, 0, 0, 0)
            else:
                block, sum_group = ACTIVATION_SHAPES[kind]
                parts = [("codes", width, np.int8), ("scales", width // block, np.float32),
                         ("sums", width // sum_group, np.int32), ("weighted", width // block, np.float32)]
                addresses = tuple(self.program.scratch(f"{x.name}.{kind}.{part}", (n, count), dtype).ctypes.data
                                  for part, count, dtype in parts)
            self.program.add(quantize.quantize_function(kind), {
                quantize.IN: x.address, quantize.COLUMNS: width, quantize.CODES: addresses[0],
                quantize.SCALES: addresses[1], quantize.SUMS: addresses[2], quantize.WEIGHTED_SUMS: addresses[3],
                quantize.ROWS_PER_TOKEN: x.per_token})
            self._activations[key] = addresses
        return self._activations[key]

    def linear(self, x: Rows, weight: Tensor, out: Rows, *, bias: Tensor | None = None, groups: tuple[int, int] | None = None,
               first_row: int = 0, row_range: tuple[int, int] | None = None, out_row: int = 0, barrier: bool = True) -> Rows:
        """out = x · weightᵀ (+ bias), where the weight has a scale times that.

        groups: addresses of the plan and its pairs, for weights [experts, rows, columns]; row_range: only these rows of the
        matrix; first_row: window slot that says which rows of x are wanted, written to out from row 0 on.
        """
        columns = weight.shape[-1]
        if columns != x.width:
            raise BadModel(f"{weight.name}: has {columns} columns, its input has {x.width}")
        start, stop = row_range or (0, weight.shape[-2])
        if row_range is None and stop != out.width:
            raise BadModel(f"{weight.name}: has {stop} rows, expected {out.width}")
        scale = weight.scale
        if scale is not None and scale.shape != (weight.shape[:-2] or (1,)):
            raise BadModel(f"{scale.name}: its shape is {scale.shape}, expected {weight.shape[:-2] or (1,)}")
        name, row_bytes = weight.format.name, weight.data.shape[-1]
        if name in unpack.FORMATS:
            function, kind = matmul.matmul_function(name), unpack.FORMATS[name].activation
        elif name in WEIGHT_BYTES:
            function, kind = float_matmul_function(name), _FLOAT_ACTIVATION[name]
        else:
            raise BadModel(f"{weight.name}: the format {name} has no kernel on the CPU")
        codes, scales, sums, weighted = self.activations(x, kind)
        per_token = out.per_token // x.per_token
        scratch, piece = self.program.worker_scratch("matmul", matmul.scratch_bytes(self.max_rows))
        self.program.add(function, {
            matmul.WEIGHTS: self.program.keep(weight.data) + start * row_bytes, matmul.ROWS: stop - start,
            matmul.EXPERT_BYTES: weight.shape[-2] * row_bytes, matmul.ROW_BYTES: row_bytes, matmul.COLUMNS: columns,
            matmul.CODES: codes, matmul.SCALES: scales, matmul.SUMS: sums, matmul.WEIGHTED_SUMS: weighted,
            matmul.OUT: out.address + 4 * out_row, matmul.OUT_STRIDE: 4 * out.width,
            matmul.GROUPS: groups[0] if groups else 0, matmul.PAIRS: groups[1] if groups else 0,
            matmul.PER_TOKEN: per_token, matmul.FIRST_ROW: first_row,
            matmul.SCRATCH: scratch, matmul.SCRATCH_BYTES: piece,
            matmul.FACTORS: self.vector(scale) if scale is not None else 0}, barrier=barrier or bias is not None)
        self.written(out)
        if bias is not None:
            if bias.shape != (out.width,):
                raise BadModel(f"{bias.name}: its shape is {bias.shape}, expected {(out.width,)}")
            self.binary(out, self.vector(bias), shared=True)
        return out

    def binary(self, x: Rows, y: int, *, shared: bool = False, factor: float = 1.0) -> Rows:
        """x += factor * rows at y, or one row for all of them."""
        self.program.add(rows.add, {rows.UNARY_A: x.address, rows.UNARY_B: y, rows.UNARY_OUT: x.address,
                                    rows.UNARY_WIDTH: x.width, rows.UNARY_PER_TOKEN: int(not shared),
                                    rows.UNARY_FACTOR: float_bits(factor)})
        return self.written(x)

    # --- blocks ---------------------------------------------------------------------------------------------------
    def embed(self, table: Tensor, *, copies: int = 1, scale: float = 1.0) -> Rows:
        """Embeddings of the window's tokens times `scale`, f32 [T, copies * D]."""
        return self.lookup(table, self.rows("stream", copies * table.shape[1]), copies=copies, scale=scale)

    def lookup(self, table: Tensor, out: Rows, *, copies: int = 1, scale: float = 1.0) -> Rows:
        """out = rows of a table for the window's tokens, `copies` times side by side, times `scale`."""
        if table.format.name not in unpack.FORMATS and table.format.name not in WEIGHT_BYTES:
            raise BadModel(f"{table.name}: the format {table.format.name} has no kernel on the CPU")
        if table.scale is not None:
            raise BadModel(f"{table.scale.name}: a table that is looked up has no products to scale")
        self.program.add(rows.embed_function(table.format.name), {
            rows.EMBED_TOKENS: self.tokens.ctypes.data, rows.EMBED_TABLE: self.program.keep(table.data),
            rows.EMBED_ROW_BYTES: table.data.shape[1], rows.EMBED_WIDTH: table.shape[1], rows.EMBED_OUT: out.address,
            rows.EMBED_COPIES: copies, rows.EMBED_HISTORY: self.history.ctypes.data,
            rows.EMBED_SCALE: float_bits(scale),
            rows.EMBED_SCRATCH: self.program.worker_scratch("embed", 1024)[0]})
        return self.written(out)

    def norm(self, x: Rows, weight: Tensor | None, *, eps: float, parts: int = 1, name: str = "normed") -> Rows:
        """Root-mean-square norm of every row (of each of its `parts`), kept under a name until that is used again."""
        if weight is not None and int(np.prod(weight.shape)) != x.width:
            raise BadModel(f"{weight.name}: has {int(np.prod(weight.shape))} values, its input {x.width}")
        out = self.rows(name, x.width)
        self.program.add(rows.rms_norm, {
            rows.NORM_IN: x.address, rows.NORM_WEIGHT: self.vector(weight) if weight is not None else 0,
            rows.NORM_OUT: out.address, rows.NORM_WIDTH: x.width // parts,
            rows.NORM_EPS: float_bits(eps), rows.NORM_PARTS: parts})
        return self.written(out)

    def add(self, x: Rows, y: Rows, *, scale: float = 1.0) -> Rows:
        """x + scale * y, in the place of x."""
        if x.width != y.width:
            raise BadModel(f"rows of {y.width} values cannot be added to rows of {x.width}")
        return self.binary(x, y.address, factor=scale)

    def scale(self, x: Rows, factor: float) -> Rows:
        """factor * x, in the place of x."""
        self.program.add(rows.scale, {rows.UNARY_A: x.address, rows.UNARY_OUT: x.address, rows.UNARY_WIDTH: x.width,
                                      rows.UNARY_PER_TOKEN: x.per_token, rows.UNARY_FACTOR: float_bits(factor)})
        return self.written(x)

    def key_value_cache(self, spec: base.Attention, name: str) -> attention.KeyValueCache:
        """A cache that several layers can read."""
        return attention.KeyValueCache(self, spec, name)

    def attention(self, x: Rows, spec: base.Attention, weights: base.Weights, *,
                  cache: attention.KeyValueCache | None = None) -> Rows:
        """f32 [T, D]; makes the layer's cache unless one is given."""
        shapes.check_attention(spec, weights, width=x.width)
        return attention.attention(self, x, spec, weights, cache)

    def mla(self, x: Rows, spec: base.Mla, weights: base.Weights) -> Rows:
        """f32 [T, D]; makes the layer's cache of compressed cells."""
        shapes.check_mla(spec, weights, width=x.width)
        return mla.mla(self, x, spec, weights)

    def delta_net(self, x: Rows, spec: base.DeltaNet, weights: base.Weights) -> Rows:
        """f32 [T, D]; makes the layer's recurrent state."""
        shapes.check_delta_net(spec, weights, width=x.width)
        return delta_net.delta_net(self, x, spec, weights)

    def mamba2(self, x: Rows, spec: base.Mamba2, weights: base.Weights) -> Rows:
        """f32 [T, D]; makes the layer's recurrent state."""
        shapes.check_mamba2(spec, weights, width=x.width)
        return mamba2.mamba2(self, x, spec, weights)

    def short_conv(self, x: Rows, spec: base.ShortConv, weights: base.Weights) -> Rows:
        """f32 [T, D]; makes the layer's history."""
        shapes.check_short_conv(spec, weights, width=x.width)
        return short_conv.short_conv(self, x, spec, weights)

    def project(self, x: Rows, weight: Tensor, *, width: int, name: str) -> Rows:
        """weight · x: f32 [T, width], kept under a name until that is used again."""
        return self.linear(x, weight, self.rows(name, width))

    def moe(self, x: Rows, spec: base.Moe, weights: base.Weights, *, router_input: Rows | None = None) -> Rows:
        """f32 [T, D]; the router reads `router_input` if one is given, else x as the experts do."""
        shapes.check_moe(spec, weights, width=x.width, router_width=(router_input or x).width)
        return moe.moe(self, x, spec, weights, router_input or x)

    def feed_forward(self, x: Rows, weights: base.Weights, *, activation: base.Activation = "swiglu") -> Rows:
        """down · activation(gate · x, up · x): f32 [T, D]."""
        shapes.check_feed_forward(weights, width=x.width, activation=activation)
        return moe.feed_forward(self, x, weights, name="ffn", activation=activation)

    def hyper_read(self, streams: Rows, spec: base.HyperConnection, weights: base.Weights) -> tuple[Rows, Rows | None]:
        """The block's input f32 [T, D] and the write weights f32 [T, streams]."""
        shapes.check_hyper_connection(spec, weights, width=streams.width)
        return hyper.read(self, streams, spec, weights)

    def hyper_write(self, streams: Rows, y: Rows, inject: Rows) -> Rows:
        """Add a block's output to every stream, in place."""
        return hyper.write(self, streams, y, inject)

    def ngram(self, streams: Rows, spec: base.NgramTable, weights: base.Weights) -> Rows:
        """Add the n-gram embeddings to every stream, in place."""
        shapes.check_ngram(spec, weights, width=streams.width)
        return ngram.ngram(self, streams, spec, weights)

    def layer_inputs(self, x: Rows, spec: base.LayerInputs, weights: base.Weights) -> Rows:
        """Every layer's input of its own, f32 [T, layers * width], from the first stream."""
        shapes.check_layer_inputs(spec, weights, width=x.width)
        return layer_inputs.make(self, x, spec, weights)

    def read_layer_input(self, x: Rows, inputs: Rows, spec: base.LayerInputs, weights: base.Weights, *, layer: int) -> Rows:
        """What a layer adds to its stream for its own input: f32 [T, D]."""
        shapes.check_layer_input_reader(spec, weights, width=x.width)
        return layer_inputs.read(self, x, inputs, spec, weights, layer=layer)

    def head(self, x: Rows, weight: Tensor, *, scale: float = 1.0, soft_cap: float = 0.0) -> None:
        """Logits of the rows that the window asks for, scaled and held within a soft cap; the end of the description."""
        out = Rows("logits", self.program.memory((self.max_rows if self.max_rows < 8 else 8, weight.shape[0])))
        self.linear(x, weight, out, first_row=WINDOW_OUT_FIRST)
        if scale != 1 or soft_cap != 0:
            self.program.add(rows.finish_logits, {
                rows.LOGITS: out.address, rows.LOGITS_WIDTH: out.width, rows.LOGITS_SCALE: float_bits(scale),
                rows.LOGITS_CAP: float_bits(soft_cap)})
        self.logits = out.array
        self.program.seal()

    # --- running --------------------------------------------------------------------------------------------------
    def run(self, tokens: np.ndarray, *, position: int, out_rows: int) -> np.ndarray | None:
        """Run a window of tokens int32 [T] at a position; logits f32 [out_rows, vocabulary] of its last rows.

        The array is overwritten by the next window. None if the run was cancelled.
        """
        if self.logits is None or out_rows > len(self.logits):
            raise Internal(f"{out_rows} rows of logits asked for")
        self.prepare()
        n = len(tokens)
        self.tokens[:n] = tokens
        if not self.program.run(rows=n, position=position, out_first=n - out_rows, out_rows=out_rows):
            return None
        return self.logits[:out_rows]

    def close(self) -> None:
        """End the worker threads and let go of the weights."""
        self.pool.close()
        self.program = Program(self.pool, 0)
        self.state.clear()

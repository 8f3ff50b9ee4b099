"""The CUDA backend: records a model's blocks once, and runs them as one captured graph for every size of window.

Owns the description, the memory on the card, the window block and the graphs; the caller owns positions. One thread.
Windows have 1, 2, 4 or 8 tokens; what is shorter runs with rows masked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from engine.backend import base, shapes
from engine.backend.cuda.ahead import Ahead
from engine.backend.cuda.blocks import attention, delta_net, experts, hyper, ngram, plain
from engine.backend.cuda.device import Device
from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.memory import DeviceArray, Memory, Weight
from engine.backend.cuda.products import WINDOWS, Source
from engine.backend.cuda.prompt.chunk import Chunk
from engine.backend.cuda.prompt.model import prompt_launches
from engine.backend.cuda.rows import Operation, Rows
from engine.backend.rotation import rotation_table
from engine.errors import BadModel, Internal
from engine.gguf import Tensor

_MOST = max(WINDOWS)
_PICK, _DRAW, _PROMPT = "pick", "draw", "prompt"  # graphs beside those of windows
_LEAST_PROMPT = 17  # tokens from which on the prompt's kernels are used
WINDOW_DTYPE = np.dtype([(name, "<i8") for name in ("rows", "position", "steps", "stopped", "out_first", "out_rows")]
                        + [("tokens", "<i4", (_MOST,))])  # kernels/window.cuh


class CudaBackend:
    """Implements `backend.base.Backend`."""

    name, kv_type, workers = "cuda", "f16", 0
    holds_weights = True

    def __init__(self, device: Device, *, max_context: int, max_rows: int, graphs: bool = True,
                 dependent_launches: bool = True) -> None:
        self.device, self.max_context, self.max_rows = device, max_context, max_rows
        self.multiprocessors = device.sm_count
        self.memory = Memory(device)
        self.state: list[base.StateArray] = []
        self.window = self.memory.buffer("window", WINDOW_DTYPE.itemsize)
        self.history = self._state_buffer("tokens", (max_context,), np.int32, positional=True)
        self._captures, self._dependent = graphs, dependent_launches
        self._operations: list[Operation] = []
        self._ropes: dict[base.Rope, Buffer] = {}
        self._usage: list[tuple[Buffer, int]] = []
        self._writes: dict[str, list[int]] = {}  # of every buffer of rows, see Rows
        self._head: plain.HeadBlock | None = None
        self._graphs: dict[int | str, object] = {}
        self._ready = False

    @property
    def isa(self) -> str:
        """The architecture that the kernels are compiled for."""
        return self.device.arch

    @property
    def n_bytes(self) -> int:
        """What the plan takes on the card."""
        return self.memory.n_bytes

    def plan(self) -> list[str]:
        """The memory on the card as a table."""
        weights, state = self.memory.weight_bytes, sum(entry.array.nbytes for entry in self.state)
        rows = {"weights": weights, "state": state, "scratch": self.n_bytes - weights - state, "in all": self.n_bytes}
        return [f"{label:>8} {n_bytes / (1 << 20):10.1f} MiB" for label, n_bytes in rows.items()]

    # --- memory ---------------------------------------------------------------------------------------------------
    def _state_buffer(self, name: str, shape: tuple[int, ...], dtype: type, *, positional: bool,
                      cells_per_row: int = 1) -> Buffer:
        buffer = self.memory.buffer(name, int(np.prod(shape)) * np.dtype(dtype).itemsize)
        self.state.append(base.StateArray(name, DeviceArray(self.device, buffer, shape, dtype), positional, cells_per_row))
        return buffer

    def state_array(self, name: str, shape: tuple[int, ...], dtype: type = np.float32, *, positional: bool = False,
                    cells_per_row: int = 1) -> DeviceArray:
        """A piece of the sequence's state."""
        self._state_buffer(name, shape, dtype, positional=positional, cells_per_row=cells_per_row)
        return self.state[-1].array

    def scratch_rows(self, name: str, width: int) -> Buffer:
        """Rows f32 [T, width] of a window under a name that all layers share."""
        return self.memory.scratch(name, 4 * _MOST * width)

    def optional_vector(self, tensor: Tensor | None) -> Buffer | None:
        """A float tensor as f32, if there is one."""
        return self.memory.vector(tensor) if tensor is not None else None

    def weight(self, tensor: Tensor) -> Weight:
        """A matrix that a block of the model reads."""
        if tensor.scale is not None:
            raise BadModel(f"{tensor.scale.name}: a factor of a whole matrix has no kernel for windows yet; use --backend cpu")
        return self.memory.weight(tensor)

    def matrix_of(self, tensor: Tensor) -> Weight:
        """A tensor as a matrix; one dimension is one row."""
        if len(tensor.shape) == 1:
            tensor = replace(tensor, shape=(1, *tensor.shape), data=tensor.data.reshape(1, -1))
        return self.weight(tensor)

    def rope_table(self, rope: base.Rope) -> Buffer:
        """Cosines and sines f32 [context, 2, dims / 2]."""
        if rope not in self._ropes:
            self._ropes[rope] = self.memory.buffer("rope", 4 * self.max_context * rope.dims)
        return self._ropes[rope]

    def usage_counter(self, experts: int) -> Buffer:
        """u64 [experts]: routes that chose each."""
        buffer = self.memory.buffer("usage", 8 * experts)
        self._usage.append((buffer, experts))
        return buffer

    @property
    def usage(self) -> list[np.ndarray]:
        """Routes that chose each expert, int64 [experts], one array a layer."""
        counters = []
        for buffer, experts_count in self._usage:
            values = np.zeros(experts_count, np.int64)
            if buffer.address is not None:
                self.device.download(buffer.address, values)
            counters.append(values)
        return counters

    # --- recording ------------------------------------------------------------------------------------------------
    def record(self, operation: Operation) -> None:
        """Append to the description."""
        self._operations.append(operation)

    def new_rows(self, name: str, width: int) -> Rows:
        """A handle for rows under a name, which are about to be written."""
        writes = self._writes.setdefault(name, [0])
        writes[0] += 1
        return Rows(self.scratch_rows(name, width), width, writes=writes)

    def source(self, x: Rows) -> Source:
        """How a product reads rows: through a norm that was put off, or as they are."""
        x.target = None  # from here on somebody has read them
        source = x.source()
        if source is None:
            raise Internal("a norm was put off beyond the next change of its rows")
        return source

    def computed(self, x: Rows) -> Buffer:
        """The rows themselves, in memory."""
        if x.normed is not None:
            rows, writes, weight, eps = x.normed
            if rows.writes[0] != writes:
                raise Internal("a norm was put off beyond the next change of its rows")
            self.record(plain.NormBlock(self, rows.buffer, x.width, weight, eps, x.buffer))
            x.normed = None
        x.target = None
        return x.buffer

    def norm_launch(self, x: Buffer, width: int, weight: Buffer, eps: float, tokens: int) -> Launch:
        """A norm in place, for blocks that have one inside."""
        return plain.norm_launch(self.window, x, width, weight, eps, x, tokens)

    def embed(self, table: Tensor, *, copies: int = 1, scale: float = 1.0) -> Rows:
        """Embeddings of the window's tokens times `scale`, f32 [T, copies * D]."""
        rows = self.new_rows("stream", copies * table.shape[1])
        self.record(plain.EmbedBlock(self, self.weight(table), rows.buffer, copies, scale))
        return rows

    def norm(self, x: Rows, weight: Tensor | None, *, eps: float, name: str = "normed") -> Rows:
        """Root-mean-square norm; put off, so that the product that reads it can take it along."""
        if weight is not None and int(np.prod(weight.shape)) != x.width:
            raise BadModel(f"{weight.name}: has {int(np.prod(weight.shape))} values, its input {x.width}")
        self.computed(x)
        rows = self.new_rows(name, x.width)
        rows.normed = (x, x.writes[0], self.optional_vector(weight), eps)
        if weight is None:
            self.computed(rows)
        return rows

    def add(self, x: Rows, y: Rows, *, scale: float = 1.0) -> Rows:
        """x + scale * y, in the place of x. The last product of a block adds its result itself."""
        if x.width != y.width:
            raise BadModel(f"rows of {y.width} values cannot be added to rows of {x.width}")
        self.computed(x)
        if y.target is not None:
            y.target.out, y.target.accumulate, y.target.scale = x.buffer, True, scale
            y.target = None
        else:
            self.record(plain.AddBlock(self, x.buffer, self.computed(y), x.width, 1.0, scale))
        x.writes[0] += 1
        return x

    def scale(self, x: Rows, factor: float) -> Rows:
        """factor * x, in the place of x."""
        self.record(plain.AddBlock(self, self.computed(x), None, x.width, factor, 0.0))
        x.writes[0] += 1
        return x

    def key_value_cache(self, spec: base.Attention, name: str) -> attention.KeyValueCache:
        """A cache that several layers can read."""
        return attention.KeyValueCache(self, spec, name)

    def attention(self, x: Rows, spec: base.Attention, weights: base.Weights, *,
                  cache: attention.KeyValueCache | None = None) -> Rows:
        """f32 [T, D]; makes the layer's cache unless one is given."""
        shapes.check_attention(spec, weights, width=x.width)
        return attention.attention(self, x, spec, weights, cache)

    def moe(self, x: Rows, spec: base.Moe, weights: base.Weights, *, router_input: Rows | None = None) -> Rows:
        """f32 [T, D]; the router reads `router_input` if one is given, else x as the experts do."""
        shapes.check_moe(spec, weights, width=x.width, router_width=(router_input or x).width)
        return experts.moe(self, x, spec, weights, router_input or x)

    def feed_forward(self, x: Rows, weights: base.Weights, *, activation: base.Activation = "swiglu") -> Rows:
        """down · activation(gate · x, up · x): f32 [T, D]."""
        shapes.check_feed_forward(weights, width=x.width, activation=activation)
        block, rows = experts.feed_forward(self, x, weights, name="ffn", activation=activation)
        self.record(block)
        return rows

    def head(self, x: Rows, weight: Tensor, *, scale: float = 1.0, soft_cap: float = 0.0) -> None:
        """Logits of the rows that the window asks for; the end of the description."""
        vocabulary = weight.shape[0]
        self._vocabulary = vocabulary
        self._head = plain.HeadBlock(
            self, self.source(x), self.weight(weight), self.memory.buffer("logits", 4 * _MOST * vocabulary),
            self.memory.buffer("best", 8 * _MOST), scale, soft_cap)
        self.record(self._head)
        self._ahead = Ahead(self.memory, self.window, self._head)
        # asked for now, so that whatever memory they want is in the plan
        self._launches = {tokens: [launch for operation in self._operations for launch in operation.window(tokens)]
                          for tokens in WINDOWS}
        self._chunk = Chunk(self.window, self.memory, self.max_rows, self.max_context)
        self._prompt = prompt_launches(self._operations, self._chunk) if self.max_rows > _MOST else None

    def delta_net(self, x: Rows, spec: base.DeltaNet, weights: base.Weights) -> Rows:
        """f32 [T, D]; makes the layer's recurrent state."""
        shapes.check_delta_net(spec, weights, width=x.width)
        return delta_net.delta_net(self, x, spec, weights)

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

    def __getattr__(self, name: str) -> object:
        if name in base.Backend.__dict__:
            raise BadModel(f"a block of this model ({name}) has no kernels on CUDA yet; use --backend cpu")
        raise AttributeError(name)

    # --- running --------------------------------------------------------------------------------------------------
    def prepare(self) -> None:
        """Allocate, upload, and capture the graphs; every kernel has run once when this returns."""
        if self._ready:
            return
        self._ahead.prepare(self.device)
        self.memory.allocate()
        for rope, buffer in self._ropes.items():
            self.device.upload(buffer.address, rotation_table(rope, range(self.max_context)))
        for tokens in WINDOWS:
            self._graphs[tokens] = self._captured(self.launches(tokens))
        for name, draws in ((_PICK, False), (_DRAW, True)):
            self._graphs[name] = self._captured([*self.launches(1), *self._ahead.launches(draws=draws)])
        if self._prompt is not None:
            self._graphs[_PROMPT] = self._captured(self._prompt, dependent=False)
        self._ready = True
        for tokens in (*WINDOWS, self.max_rows):
            self.run(np.zeros(min(tokens, self.max_context), np.int32), position=0, out_rows=1)
        for draw in (None, base.Draw(top_k=1, top_p=1.0, min_p=0.0, temperature=1.0, seed=0)):
            list(self.run_ahead(0, position=0, limit=1, stop_ids=(), draw=draw))
        for entry in self.state:
            entry.array.fill(0)
        for buffer, experts_count in self._usage:
            self.device.fill_zero(buffer.address, 8 * experts_count)

    def launches(self, tokens: int) -> list[Launch]:
        """All launches of a window of up to `tokens`."""
        return self._launches[tokens]

    def _captured(self, launches: Sequence[Launch], *, dependent: bool = True) -> object:
        """Launches as one graph; without graphs the launches themselves, one behind the other."""
        if not self._captures:
            return launches
        handles = [self.device.load_launch(launch) for launch in launches]
        self.device.begin_capture()
        for i, (launch, handle) in enumerate(zip(launches, handles, strict=True)):
            self.device.run(launch, handle=handle, dependent=dependent and self._dependent and i > 0)
        return self.device.end_capture()

    def _launch(self, graph: object) -> None:
        if self._captures:
            self.device.launch_graph(graph)
            return
        for launch in graph:
            self.device.run(launch)

    def run(self, tokens: np.ndarray, *, position: int, out_rows: int) -> np.ndarray | None:
        """Run tokens int32 [T] at a position; logits f32 [out_rows, vocabulary] of the last rows, until the next run."""
        if self._head is None or out_rows > min(_MOST, len(tokens)):
            raise Internal(f"{out_rows} rows of logits asked for")
        if not 1 <= len(tokens) <= self.max_rows:
            raise Internal(f"{len(tokens)} tokens at once: at most {self.max_rows}")
        self.prepare()
        if self._prompt is not None and len(tokens) >= _LEAST_PROMPT:
            self.device.upload(self._chunk.ids.address, np.asarray(tokens, np.int32))
            self._set_window(tokens, position, out_rows)
            self._launch(self._graphs[_PROMPT])
        else:
            self._run_windows(tokens, position, out_rows)
        logits = np.empty((out_rows, self._vocabulary), np.float32)
        if out_rows:
            self.device.download(self._head.logits.address, logits)
        self.device.synchronize()
        return logits

    def _run_windows(self, tokens: np.ndarray, position: int, out_rows: int) -> None:
        """Tokens in windows; the wanted rows are in the last of them."""
        for first in range(0, len(tokens), _MOST):
            part = tokens[first:first + _MOST]
            wanted = out_rows if first + len(part) == len(tokens) else 0
            if wanted > len(part):
                raise Internal("the wanted rows lie in two windows")
            self._set_window(part, position + first, wanted)
            self._launch(self._graphs[next(size for size in WINDOWS if size >= len(part))])

    def _set_window(self, tokens: np.ndarray, position: int, out_rows: int) -> None:
        values = np.zeros(1, WINDOW_DTYPE)
        values["rows"], values["position"] = len(tokens), position
        values["out_first"], values["out_rows"] = len(tokens) - out_rows, out_rows
        values["tokens"][0, :min(len(tokens), _MOST)] = tokens[:_MOST]
        self.device.upload(self.window.address, values)

    def run_ahead(self, token: int, *, position: int, limit: int, stop_ids: Sequence[int],
                  draw: base.Draw | None = None) -> Iterator[tuple[int, int]]:
        """The tokens that follow `token` at a position, each drawn as `draw` says or without it the argmax (-1 where a logit
        was not finite), at most `limit`, the stop token included; and with each the cells that the sequence then has.

        The next window is under way before the last was read; if the caller stops early, one more token was computed.
        """
        self.prepare()
        self._ahead.start(stop_ids, draw)
        self._set_window(np.array([token], np.int32), position, 1)
        graph = self._graphs[_PICK if draw is None else _DRAW]
        for picked, launched in self._ahead.picks(lambda: self._launch(graph), limit=limit, stop_ids=stop_ids):
            yield picked, position + launched

    def close(self) -> None:
        """Give the memory back."""
        self.device.synchronize()
        self._graphs.clear()
        self.memory.free()
        self.state.clear()

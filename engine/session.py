"""One sequence on one loaded model: tokens go in, logits come out.

Owns the model's files, the backend and the sequence's state. Knows nothing of requests, sampling or text. All calls come from
one thread, but `cancel`.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from engine.backend.base import Draw
from engine.errors import BadModel, BadToken, ContextExceeded, Internal, NonFiniteLogits, OutOfMemory
from engine.gguf import ModelFiles, open_model
from engine.model.base import Hyper, Tensors
from engine.model.registry import architecture
from engine.model.stop_ids import find_stop_ids
from engine.state.sequence import Checkpoint, SequenceState
from engine.tiers.budget import Plan, does_not_fit, usable_bytes

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from packs.manifest import ModelSource

log = logging.getLogger("terrace.engine")

WINDOW_MAX = 8
_DEFAULT_CONTEXT = 8192
_PLAN_CHUNK = 512  # prompt chunk of the advice for a model that does not fit


class Session:
    """See the module. `position` counts the tokens read; logits arrays are valid until the next step."""

    def __init__(self, files: ModelFiles, backend: Any, *, arch: str, stop_ids: tuple[int, ...], chunk_size: int,
                 vocab_size: int, deterministic: bool, window_hashes: bool = False) -> None:
        self._files, self._backend = files, backend
        self._state = SequenceState(backend.state)
        self.arch, self.stop_ids, self.chunk_size, self.vocab_size = arch, stop_ids, chunk_size, vocab_size
        self.max_context: int = backend.max_context
        self.window_max = min(WINDOW_MAX, chunk_size)
        self._deterministic, self._window_hashes = deterministic, window_hashes

    @property
    def position(self) -> int:
        """Tokens read so far."""
        return self._state.position

    def reset(self) -> None:
        """An empty sequence."""
        self._state.reset()

    def step(self, tokens: Sequence[int] | np.ndarray, *,
             logits: Literal["none", "last", "all"] = "last") -> np.ndarray | None:
        """Append tokens int32 [T]; f32 [1, vocab], or [T, vocab] for "all", or None for "none".

        Raises BadToken for an id outside the vocabulary and ContextExceeded if they do not fit, before anything changes.
        """
        ids = np.asarray(tokens, np.int32)
        n = len(ids)
        if not 1 <= n <= self.chunk_size or (logits == "all" and n > self.window_max):
            raise Internal(f"a step of {n} tokens: at most {self.chunk_size}, with all logits {self.window_max}")
        if self.position + n > self.max_context:
            raise ContextExceeded(f"{self.position} + {n} tokens do not fit the context of {self.max_context}")
        if int(ids.min()) < 0 or int(ids.max()) >= self.vocab_size:
            bad = int(ids[(ids < 0) | (ids >= self.vocab_size)][0])
            raise BadToken(f"token id {bad}: expected 0..{self.vocab_size - 1}")
        out_rows = {"none": 0, "last": 1, "all": n}[logits]
        if self._window_hashes:
            out_rows = max(out_rows, 1)
        result = self._backend.run(ids, position=self.position, out_rows=out_rows)
        if result is None:
            self.reset()
            raise Internal("the window was cancelled half-way; the sequence is dropped")
        if self._window_hashes:
            log.info("window at=%d tokens=%d read=%s logits=%s", self.position, n, _digest(ids), _digest(result[-1]))
        self._state.position += n
        return result if logits != "none" else None

    @property
    def runs_ahead(self) -> bool:
        """Whether the backend goes on by itself: `run_ahead`. It does not where every window's logits are asked for."""
        return hasattr(self._backend, "run_ahead") and not self._window_hashes

    def run_ahead(self, token: int, *, limit: int, stop_ids: Sequence[int], draw: Draw | None = None) -> Iterator[int]:
        """Append `token`, yield the one drawn (without `draw`: the argmax), append that, and so on: at most `limit` tokens,
        a stop token being the last.

        The backend is ahead of the reader: behind the last token one more may have been read into the sequence, which
        `position` then counts. Raises NonFiniteLogits.
        """
        limit = min(limit, self.max_context - self.position)
        for picked, cells in self._backend.run_ahead(token, position=self.position, limit=limit, stop_ids=stop_ids, draw=draw):
            self._state.position = cells
            if picked < 0:
                raise NonFiniteLogits(f"the logits for a position before {cells + 1} are not finite")
            yield picked

    def save(self) -> Checkpoint:
        """A checkpoint of the present length."""
        return self._state.save()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint whose tokens are still the first of this sequence."""
        self._state.restore(checkpoint)

    def cut(self, n: int) -> None:
        """Keep the first n tokens; a model with recurrent state needs a checkpoint instead (Internal)."""
        self._state.cut(n)

    def info(self) -> dict[str, str | int]:
        """Effective values for the INFO line."""
        return {
            "arch": self.arch, "context": self.max_context, "vocab": self.vocab_size,
            "eos": ",".join(map(str, self.stop_ids)), "backend": self._backend.name, "isa": self._backend.isa,
            "pool_workers": self._backend.workers, "kv": self._backend.kv_type, "prefill": self.chunk_size,
            "window_max": self.window_max,
            "weights_mib": sum(tensor.n_bytes for tensor in self._files.tensors.values()) >> 20,
            "state_mib": self._state.n_bytes >> 20, "plan_mib": self._backend.n_bytes >> 20,
            "deterministic": int(self._deterministic)}

    def usage(self) -> dict[str, int]:
        """Counters since the start. `lookups` are routes to experts; none is a hit, since all experts stay in the file."""
        lookups = sum(int(layer.sum()) for layer in self._backend.usage)
        return {"hits": 0, "lookups": lookups, "ram_blobs": 0, "file_blobs": 0, "file_mb": 0}

    def close(self) -> None:
        """End the workers and unmap the files."""
        self._backend.close()
        self._files.close()


def _digest(values: np.ndarray) -> str:
    """Eight bytes of a hash of an array's bytes, in hexadecimal."""
    return hashlib.blake2b(np.ascontiguousarray(values).tobytes(), digest_size=8).hexdigest()


def load_session(source: "ModelSource", config: "EngineConfig") -> Session:
    """Open a model's files, describe it to a backend, and return a session on it. Raises BadModel."""
    files = open_model(source.model, config.ple_gguf or source.ple)
    try:
        return _load(files, config, source.stop_tokens)
    except BaseException:
        files.close()
        raise


def _load(files: ModelFiles, config: "EngineConfig", stop_tokens: Sequence[str]) -> Session:
    hyper, tensors = Hyper(files), Tensors(files.tensors)
    describe = architecture(hyper.arch).describe
    trained = hyper.integer("context_length")
    context = config.max_context or min(trained, _DEFAULT_CONTEXT)
    if context > trained:
        log.warning("a context of %d: the model was trained for %d, beyond that its text may fall apart", context, trained)
    vocab_size = vocabulary_rows(files, hyper, tensors)
    stop_ids = _stop_ids(files, config, stop_tokens, vocab_size)
    chunk = min(config.prefill, context)

    backend = None
    for make_backend, usable in _candidates(config):
        def described(context: int, chunk: int, make_backend: Callable = make_backend) -> Any:
            backend = make_backend(context, chunk)
            try:
                describe(backend, hyper, tensors)
                tensors.check_all_used(hyper)
            except BaseException:
                backend.close()
                raise
            return backend

        try:
            backend = _fitting(described, context, chunk, usable)
            break
        except (BadModel, OutOfMemory) as error:
            if config.backend != "auto" or make_backend.kind == "cpu":
                raise
            log.warning("computing on the CPU: %s", error)
    return Session(files, backend, arch=hyper.arch, chunk_size=chunk, vocab_size=vocab_size, stop_ids=stop_ids,
                   deterministic=config.deterministic, window_hashes=config.window_hashes)


def _fitting(described: Callable[[int, int], Any], context: int, chunk: int, usable: Callable[[], int]) -> Any:
    """A backend with the model described to it, if its memory is there. Nothing of it has been touched yet."""
    needed_bytes, usable_bytes = None, usable()
    try:
        backend = described(context, chunk)
    except MemoryError:  # the system refuses already to set it aside
        pass
    else:
        needed_bytes = backend.n_bytes
        if needed_bytes <= usable_bytes:
            for line in backend.plan():
                log.info("%s", line)
            log.info("memory: %d MiB are needed, %d MiB are available", needed_bytes >> 20, usable_bytes >> 20)
            backend.prepare()
            return backend
        backend.close()
    cells = min(chunk, _PLAN_CHUNK)
    points = []
    for measured in (cells, 2 * cells):
        small = described(measured, cells)
        points.append((measured, small.n_bytes))
        small.close()
    plan = Plan.through(*points)
    raise does_not_fit(needed_bytes=needed_bytes or plan.bytes_for(context), usable=usable_bytes, context=context,
                       chunk=chunk, plan=plan, plan_chunk=cells, weights=small.holds_weights)


def vocabulary_rows(files: ModelFiles, hyper: Hyper, tensors: Tensors) -> int:
    """Rows of the embedding, of which the vocabulary may leave some unused."""
    table = tensors["token_embd.weight"]
    width = hyper.integer("embedding_length")
    if len(table.shape) != 2 or table.shape[1] != width:
        raise BadModel(f"{table.name}: its shape is {table.shape}, expected (vocabulary, {width})")
    tokens = files.metadata.get("tokenizer.ggml.tokens")
    n_tokens = getattr(tokens, "length", None) or (len(tokens) if isinstance(tokens, list) else 0)
    if n_tokens > table.shape[0]:
        raise BadModel(f"{table.name}: has {table.shape[0]} rows for a vocabulary of {n_tokens} tokens")
    return table.shape[0]


def _stop_ids(files: ModelFiles, config: "EngineConfig", texts: Sequence[str], vocab_size: int) -> tuple[int, ...]:
    """What the command line says, else what the file and the pack say."""
    if config.eos_ids is None:
        return find_stop_ids(files, texts)
    outside = [i for i in config.eos_ids if i >= vocab_size]
    if outside:
        raise BadModel(f"--eos-ids: {outside[0]} is outside the vocabulary of {vocab_size}")
    return tuple(sorted(set(config.eos_ids)))


class _Maker:
    """Makes a backend of one kind for a context and a chunk."""

    def __init__(self, kind: str, make: Callable[[int, int], Any]) -> None:
        self.kind, self._make = kind, make

    def __call__(self, context: int, chunk: int) -> Any:
        return self._make(context, chunk)


def _candidates(config: "EngineConfig") -> Iterator[tuple[_Maker, Callable[[], int]]]:
    """Backends to try in turn, as the configuration asks: what makes one, and how much memory it may take.

    Modules are imported here: they bring numba, or CUDA.
    """
    if config.backend != "cpu":
        from engine.backend.cuda.presence import reason_without
        missing = reason_without()
        if missing is None:
            from engine.backend.cuda.backend import CudaBackend
            from engine.backend.cuda.device import GpuDevice
            device = GpuDevice()
            reserve, budget = config.vram_reserve_mib << 20, (config.vram_budget_mib or 1 << 30) << 20
            yield (_Maker("cuda", lambda context, chunk: CudaBackend(
                device, max_context=context, max_rows=chunk, graphs=config.graphs)),
                lambda: min(device.free_bytes() - reserve, budget))
        elif config.backend == "cuda":
            raise BadModel(f"--backend cuda: {missing}")
        else:
            log.info("computing on the CPU: %s", missing)
    if config.backend != "cuda":
        from engine.backend.cpu import isa
        isa.prepare_numba()
        from engine.backend.cpu.backend import CpuBackend
        yield (_Maker("cpu", lambda context, chunk: CpuBackend(
            workers=config.pool_workers, max_context=context, max_rows=chunk)), usable_bytes)

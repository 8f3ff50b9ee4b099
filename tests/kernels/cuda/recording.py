"""A card that computes nothing and holds nothing, but remembers what it is asked for; and files of real sizes whose tensors
are holes. With both, a model as large as can be is described and prepared in no memory."""

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

from engine.backend.cuda.backend import CudaBackend
from engine.backend.cuda.device import Pinned
from engine.backend.cuda.launch import Launch
from engine.gguf import FORMATS, open_model
from engine.model.base import Hyper, Tensors
from engine.model.registry import architecture

Program = tuple[str, tuple[tuple[str, str], ...]]  # name, defines


class RecordingDevice:
    """`engine.backend.cuda.device.Device`."""

    name, sm_count, l2_bytes = "recording", 132, 50 << 20

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.programs: dict[Program, set[str]] = {}  # and which kernels of each
        self._next = 1 << 20

    def free_bytes(self) -> int:
        return 1 << 40

    def allocate(self, n_bytes: int) -> int:
        address = self._next
        self._next += -(-n_bytes // 256) * 256
        return address

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Pinned:
        return Pinned(np.zeros(shape, dtype), self.allocate(prod(shape) * np.dtype(dtype).itemsize))

    def load_launch(self, launch: Launch) -> None:
        launch.packed()  # raises for arguments that the kernel has not
        self.programs.setdefault((launch.program, launch.defines), set()).add(launch.kernel)

    def run(self, launch: Launch, *, handle: Any = None, dependent: bool = False) -> None:
        self.load_launch(launch)

    def _nothing(self, *arguments: Any) -> None:
        """Nothing is held, so nothing is copied, captured or waited for."""

    free = upload = download = fill_zero = begin_capture = end_capture = launch_graph = wait_for = synchronize = _nothing


def programs_of(path: Path, arch: str, *, max_context: int = 4096, max_rows: int = 512) -> dict[Program, set[str]]:
    """Every program that a model's backend loads on such a card, with the kernels that are used."""
    device = RecordingDevice(arch)
    with open_model(path) as files:
        backend = CudaBackend(device, max_context=max_context, max_rows=max_rows)
        hyper = Hyper(files)
        architecture(hyper.arch).describe(backend, hyper, Tensors(files.tensors))
        backend.prepare()
    return device.programs


def write_hollow_mixture(path: Path, block_format: str) -> Path:
    """A layer of a `qwen3moe` as wide as Qwen3-30B-A3B, every matrix in one format."""
    width, heads, kv_heads, dim, experts, inner, vocabulary = 2048, 32, 4, 128, 128, 768, 4096
    layer = {"attn_norm": (width,), "attn_q": (heads * dim, width), "attn_k": (kv_heads * dim, width),
             "attn_v": (kv_heads * dim, width), "attn_output": (width, heads * dim), "attn_q_norm": (dim,),
             "attn_k_norm": (dim,), "ffn_norm": (width,), "ffn_gate_inp": (experts, width),
             "ffn_gate_exps": (experts, inner, width), "ffn_up_exps": (experts, inner, width),
             "ffn_down_exps": (experts, width, inner)}
    shapes = {"token_embd.weight": (vocabulary, width), **{f"blk.0.{name}.weight": shape for name, shape in layer.items()},
              "output_norm.weight": (width,), "output.weight": (vocabulary, width)}
    hyperparameters = {
        "vocab_size": vocabulary, "context_length": 40960, "embedding_length": width, "block_count": 1,
        "attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.key_length": dim,
        "attention.value_length": dim, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6,
        "rope.dimension_count": dim, "expert_count": experts, "expert_used_count": 8, "feed_forward_length": inner,
        "expert_feed_forward_length": inner}
    writer = GGUFWriter(path, "qwen3moe")
    writer.add_string("tokenizer.ggml.model", "no_vocab")
    for key, value in hyperparameters.items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(f"qwen3moe.{key}", value)
    end = 0
    for name, shape in shapes.items():
        stored = FORMATS[block_format if len(shape) > 1 and "gate_inp" not in name else "F32"]
        n_bytes = prod(shape[:-1]) * stored.row_bytes(shape[-1])
        writer.add_tensor_info(name, shape, np.dtype(np.int8), n_bytes, raw_dtype=stored.id)
        end += -(-n_bytes // writer.data_alignment) * writer.data_alignment
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(-(-path.stat().st_size // writer.data_alignment) * writer.data_alignment + end)
    return path

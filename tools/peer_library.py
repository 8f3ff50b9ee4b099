"""llama.cpp's C interface (v0.5.0) as ctypes: structures, signatures, finding and loading the shared libraries.

Owns nothing of the measuring; tools/peer.py does that. The structures must match that version to the byte.
"""

import ctypes as c
import os
from pathlib import Path
from typing import Any

import numpy as np

FILE_TYPES = {  # llama_ftype
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12,
    "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ2_XXS": 19, "IQ2_XS": 20,
    "Q2_K_S": 21, "IQ3_XS": 22, "IQ3_XXS": 23, "IQ1_S": 24, "IQ4_NL": 25, "IQ3_S": 26, "IQ3_M": 27, "IQ2_S": 28,
    "IQ2_M": 29, "IQ4_XS": 30, "IQ1_M": 31, "BF16": 32, "TQ1_0": 36, "TQ2_0": 37, "MXFP4_MOE": 38, "Q1_0": 40,
    "Q2_0": 41,
}  # fmt: skip
_LOG = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
_LOUD = _LOG()  # null: llama.cpp's own, to stderr
_SILENT = _LOG(lambda _level, _text, _user: None)  # for the life of the process: llama.cpp keeps the pointer
_DEFAULT_FOLDER = ".cache/llama-oracle/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64"


class PeerError(Exception):
    """llama.cpp is not there or refused; the text says which."""


class ModelParams(c.Structure):
    """llama_model_params"""

    _fields_ = (
        ("devices", c.c_void_p), ("tensor_buft_overrides", c.c_void_p), ("n_gpu_layers", c.c_int32),
        ("split_mode", c.c_int), ("load_mode", c.c_int), ("lazy_mode", c.c_int), ("main_gpu", c.c_int32),
        ("tensor_split", c.c_void_p), ("progress_callback", c.c_void_p), ("progress_callback_user_data", c.c_void_p),
        ("kv_overrides", c.c_void_p), ("vocab_only", c.c_bool), ("check_tensors", c.c_bool),
        ("use_extra_bufts", c.c_bool), ("no_host", c.c_bool), ("no_alloc", c.c_bool), ("load_mtp", c.c_bool),
    )  # fmt: skip


class ContextParams(c.Structure):
    """llama_context_params"""

    _fields_ = (
        ("n_ctx", c.c_uint32), ("n_batch", c.c_uint32), ("n_ubatch", c.c_uint32), ("n_seq_max", c.c_uint32),
        ("n_rs_seq", c.c_uint32), ("n_outputs_max", c.c_uint32), ("n_outputs_max_per_seq", c.c_uint32),
        ("n_threads", c.c_int32), ("n_threads_batch", c.c_int32), ("ctx_type", c.c_int), ("rope_scaling_type", c.c_int),
        ("pooling_type", c.c_int), ("attention_type", c.c_int), ("flash_attn_type", c.c_int),
        ("rope_freq_base", c.c_float), ("rope_freq_scale", c.c_float), ("yarn_ext_factor", c.c_float),
        ("yarn_attn_factor", c.c_float), ("yarn_beta_fast", c.c_float), ("yarn_beta_slow", c.c_float),
        ("yarn_orig_ctx", c.c_uint32), ("defrag_thold", c.c_float), ("cb_eval", c.c_void_p),
        ("cb_eval_user_data", c.c_void_p), ("type_k", c.c_int), ("type_v", c.c_int), ("abort_callback", c.c_void_p),
        ("abort_callback_data", c.c_void_p), ("embeddings", c.c_bool), ("offload_kqv", c.c_bool), ("no_perf", c.c_bool),
        ("op_offload", c.c_bool), ("swa_full", c.c_bool), ("kv_unified", c.c_bool), ("samplers", c.c_void_p),
        ("n_samplers", c.c_size_t), ("ctx_other", c.c_void_p),
    )  # fmt: skip


class Batch(c.Structure):
    """llama_batch"""

    _fields_ = (
        ("n_tokens", c.c_int32), ("token", c.POINTER(c.c_int32)), ("embd", c.POINTER(c.c_float)),
        ("pos", c.POINTER(c.c_int32)), ("n_seq_id", c.POINTER(c.c_int32)), ("seq_id", c.POINTER(c.POINTER(c.c_int32))),
        ("logits", c.POINTER(c.c_int8)),
    )  # fmt: skip


class BufferOverride(c.Structure):
    """llama_model_tensor_buft_override"""

    _fields_ = (("pattern", c.c_char_p), ("buft", c.c_void_p))


class ImportanceEntry(c.Structure):
    """One tensor of an importance matrix"""

    _fields_ = (("name", c.c_char_p), ("data", c.POINTER(c.c_float)), ("size", c.c_size_t))


class QuantizeParams(c.Structure):
    """llama_model_quantize_params"""

    _fields_ = (
        ("nthread", c.c_int32), ("ftype", c.c_int), ("output_tensor_type", c.c_int), ("token_embedding_type", c.c_int),
        ("allow_requantize", c.c_bool), ("quantize_output_tensor", c.c_bool), ("only_copy", c.c_bool),
        ("pure", c.c_bool), ("keep_split", c.c_bool), ("dry_run", c.c_bool), ("imatrix", c.c_void_p),
        ("kv_overrides", c.c_void_p),
        ("tt_overrides", c.c_void_p), ("prune_layers", c.c_void_p), ("max_buf_size", c.c_size_t),
    )  # fmt: skip


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "llama_model_default_params": (ModelParams, []),
    "llama_context_default_params": (ContextParams, []),
    "llama_model_load_from_file": (c.c_void_p, [c.c_char_p, ModelParams]),
    "llama_init_from_model": (c.c_void_p, [c.c_void_p, ContextParams]),
    "llama_model_get_vocab": (c.c_void_p, [c.c_void_p]),
    "llama_vocab_n_tokens": (c.c_int32, [c.c_void_p]),
    "llama_batch_init": (Batch, [c.c_int32, c.c_int32, c.c_int32]),
    "llama_batch_free": (None, [Batch]),
    "llama_decode": (c.c_int32, [c.c_void_p, Batch]),
    "llama_get_logits_ith": (c.POINTER(c.c_float), [c.c_void_p, c.c_int32]),
    "llama_tokenize": (
        c.c_int32,
        [c.c_void_p, c.c_char_p, c.c_int32, c.POINTER(c.c_int32), c.c_int32, c.c_bool, c.c_bool],
    ),
    "llama_free": (None, [c.c_void_p]),
    "llama_model_free": (None, [c.c_void_p]),
    "llama_model_quantize": (c.c_uint32, [c.c_char_p, c.c_char_p, c.POINTER(QuantizeParams)]),
    "llama_model_quantize_default_params": (QuantizeParams, []),
}


def library_folder() -> Path:
    """Where the .so files are: $TERRACE_PEER_LIB, or what npm installed under ~/.cache/llama-oracle."""
    chosen = os.environ.get("TERRACE_PEER_LIB")
    return Path(chosen) if chosen else Path.home() / _DEFAULT_FOLDER


class Library:
    """libllama and the backends beside it, loaded into this process."""

    def __init__(self, folder: Path, *, verbose: bool):
        c.CDLL("libstdc++.so.6", mode=c.RTLD_GLOBAL)  # before a GPU backend that carries a copy of its own
        _load(folder, "libggml-base")
        self.ggml, self.llama = _load(folder, "libggml"), _load(folder, "libllama")
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self.llama, name)
            function.restype, function.argtypes = result, arguments
        self.llama.llama_log_set(_LOUD if verbose else _SILENT, None)
        self.ggml.ggml_backend_dev_count.restype = c.c_size_t
        if not self.ggml.ggml_backend_dev_count():
            self.ggml.ggml_backend_load_all_from_path(str(folder).encode())
        self.llama.llama_backend_init()

    def place_on_cpu(self, pattern: bytes) -> Any:
        """Overrides (ended by a null entry) that keep tensors whose name matches in host memory."""
        self.ggml.ggml_backend_dev_by_type.restype = c.c_void_p
        self.ggml.ggml_backend_dev_buffer_type.restype = c.c_void_p
        self.ggml.ggml_backend_dev_buffer_type.argtypes = [c.c_void_p]
        host = self.ggml.ggml_backend_dev_buffer_type(self.ggml.ggml_backend_dev_by_type(0))
        return (BufferOverride * 2)((pattern, host), (None, None))


def flat_importance(path: Path) -> tuple[Any, list[np.ndarray]]:
    """Equal importance for every column of every matrix, which IQ1, IQ2 and IQ3_XXS insist on; keep both alive."""
    from engine.gguf import open_model

    entries, arrays = [], []
    with open_model(path) as model:
        for tensor in model.tensors.values():
            if len(tensor.shape) > 1:
                ones = np.ones(tensor.shape[-1] * (tensor.shape[0] if len(tensor.shape) > 2 else 1), np.float32)
                arrays.append(ones)
                pointer = ones.ctypes.data_as(c.POINTER(c.c_float))
                entries.append(ImportanceEntry(tensor.name.encode(), pointer, ones.size))
    return (ImportanceEntry * (len(entries) + 1))(*entries), arrays


def _load(folder: Path, stem: str) -> c.CDLL:
    found = sorted(folder.glob(f"{stem}.*so"))
    if not found:
        raise PeerError(f"no {stem}*.so in {folder}; tools/peer.py names the package to install")
    return c.CDLL(str(found[0]), mode=c.RTLD_GLOBAL)

"""Drives llama.cpp's own library as an independent reference: logits, greedy text, token ids, quantizing, timing.

A measuring instrument; engine and gateway never import it. It needs prebuilt llama.cpp v0.5.0 for x86-64 Linux:

    npm install --prefix ~/.cache/llama-oracle @node-llama-cpp/linux-x64@3.22.1

or another folder with the .so files named by TERRACE_PEER_LIB. Do not run it beside the engine: both take all cores.

    python -m tools.peer logits MODEL.gguf --tokens 1,2,3 --kv f32 --out logits.npz     # f32 [tokens, vocabulary]
    python -m tools.peer greedy MODEL.gguf --tokens @ids.txt -n 32
    python -m tools.peer tokenize MODEL.gguf --text 'Hello' [--special] [--bos]
    python -m tools.peer quantize IN.gguf OUT.gguf Q4_K_M [--pure] [--flat-imatrix]
    python -m tools.peer bench MODEL.gguf -p 512 -n 64 -t 2 [--gpu-layers 99] [--cpu-moe]
"""

import argparse
import ctypes
import json
import sys
import time
from pathlib import Path

import numpy as np

from tools.peer_library import (
    FILE_TYPES,
    Library,
    ModelParams,
    PeerError,
    QuantizeParams,
    flat_importance,
    library_folder,
)

_KV_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}  # ggml type ids
_SLOW_EXPERTS = rb"\.ffn_(up|down|gate|gate_up)_(ch|)exps"


class Peer:
    """One model in llama.cpp with one context holding one sequence."""

    def __init__(
        self,
        path: str | Path,
        *,
        context: int = 4096,
        threads: int = 2,
        kv: str = "f16",
        batch: int = 512,
        gpu_layers: int = 0,
        cpu_moe: bool = False,
        repack: bool = False,
        vocabulary_only: bool = False,
        folder: Path | None = None,
        verbose: bool = False,
    ):
        self.library = Library(folder or library_folder(), verbose=verbose)
        llama = self.library.llama
        params: ModelParams = llama.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        params.vocab_only = vocabulary_only
        params.use_extra_bufts = repack
        if cpu_moe:
            self._overrides = self.library.place_on_cpu(_SLOW_EXPERTS)  # must outlive the load
            params.tensor_buft_overrides = ctypes.cast(self._overrides, ctypes.c_void_p)
        self._context = self._model = None
        self._model = llama.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise PeerError(f"llama.cpp cannot load {path}; --verbose shows its reason")
        self._vocabulary = llama.llama_model_get_vocab(self._model)
        self.vocab_size: int = llama.llama_vocab_n_tokens(self._vocabulary)
        self.position = 0
        if not vocabulary_only:
            self._open_context(context, threads, kv, batch)

    def _open_context(self, context: int, threads: int, kv: str, batch: int) -> None:
        llama = self.library.llama
        params = llama.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = params.n_ubatch = batch
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = _KV_TYPES[kv]
        if kv == "f32":
            params.flash_attn_type = 0  # its flash attention rounds K and V to f16 whatever the cache holds
        self._context = llama.llama_init_from_model(self._model, params)
        if not self._context:
            raise PeerError("llama.cpp cannot create a context")
        self._batch = llama.llama_batch_init(batch, 0, 1)
        self._batch_size = batch

    def read(self, tokens: list[int] | np.ndarray, *, all_rows: bool = False) -> np.ndarray:
        """Append tokens to the sequence; logits f32 [tokens or 1, vocabulary]."""
        llama, batch, rows = self.library.llama, self._batch, []
        for start in range(0, len(tokens), self._batch_size):
            chunk = tokens[start : start + self._batch_size]
            for i, token in enumerate(chunk):
                batch.token[i] = int(token)
                batch.pos[i] = self.position + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = int(all_rows or start + i == len(tokens) - 1)
            batch.n_tokens = len(chunk)
            if llama.llama_decode(self._context, batch):
                raise PeerError(f"llama_decode failed at position {self.position}")
            self.position += len(chunk)
            for i in range(len(chunk)):
                if batch.logits[i]:
                    row = llama.llama_get_logits_ith(self._context, i)
                    rows.append(np.ctypeslib.as_array(row, (self.vocab_size,)).copy())
        return np.stack(rows)

    def greedy(self, tokens: list[int], n: int) -> list[int]:
        """Read a prompt, then `n` tokens by argmax (ties to the lower id)."""
        out: list[int] = []
        pending = list(tokens)
        while len(out) < n:
            out.append(int(self.read(pending)[-1].argmax()))
            pending = out[-1:]
        return out

    def tokenize(self, text: str, *, bos: bool = False, special: bool = False) -> list[int]:
        """Token ids of a text; `special` lets it name control tokens."""
        data = text.encode()
        out = (ctypes.c_int32 * (len(data) + 16))()
        n = self.library.llama.llama_tokenize(self._vocabulary, data, len(data), out, len(out), bos, special)
        if n < 0:
            raise PeerError("llama_tokenize failed")
        return list(out[:n])

    def bench(self, prompt: int, generate: int) -> dict[str, float]:
        """Tokens per second of a random prompt and of one-token steps after it."""
        rng = np.random.default_rng(0)
        ids = rng.integers(0, self.vocab_size, prompt + generate).tolist()
        self.read(ids[:8])  # first touch of the weights
        start = time.perf_counter()
        self.read(ids[:prompt])
        middle = time.perf_counter()
        for token in ids[prompt:]:
            self.read([token])
        end = time.perf_counter()
        return {"prompt_tps": prompt / (middle - start), "decode_tps": generate / (end - middle)}

    def close(self) -> None:
        """Free the context and the model."""
        if self._context:
            self.library.llama.llama_batch_free(self._batch)
            self.library.llama.llama_free(self._context)
        if self._model:
            self.library.llama.llama_model_free(self._model)
        self._context = self._model = None

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def quantize(
    source: str | Path,
    out: str | Path,
    kind: str,
    *,
    threads: int = 2,
    pure: bool = False,
    flat_imatrix: bool = False,
    folder: Path | None = None,
) -> None:
    """Write `out` as `kind` (a llama_ftype name such as Q4_K_M, or F32 for the float twin)."""
    if kind not in FILE_TYPES:
        raise PeerError(f"{kind} is none of {', '.join(FILE_TYPES)}")
    llama = Library(folder or library_folder(), verbose=False).llama
    params: QuantizeParams = llama.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[kind]
    params.nthread = threads
    params.pure = pure
    params.allow_requantize = True
    if flat_imatrix:
        entries, _alive = flat_importance(Path(source))
        params.imatrix = ctypes.cast(entries, ctypes.c_void_p)
    if llama.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params)):
        raise PeerError(f"llama.cpp cannot quantize {source} to {kind}")


def parse_tokens(text: str) -> list[int]:
    """Ids from "1,2,3" or from "@FILE"."""
    if text.startswith("@"):
        text = Path(text[1:]).read_text()
    return [int(word) for word in text.replace(",", " ").replace("[", " ").replace("]", " ").split()]


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("logits", "greedy", "tokenize", "quantize", "bench"))
    parser.add_argument("model", type=Path)
    parser.add_argument("rest", nargs="*", help="quantize: OUT.gguf TYPE")
    parser.add_argument("--lib", type=Path, help="folder of the .so files (default: see above)")
    parser.add_argument("--tokens", default="", help="comma-separated ids, or @FILE")
    parser.add_argument("--text", default="")
    parser.add_argument("--out", type=Path, help="logits: also write tokens and logits as .npz")
    parser.add_argument("-n", type=int, default=32, help="tokens to generate")
    parser.add_argument("-p", type=int, default=512, help="bench: prompt tokens")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--ctx", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--kv", choices=tuple(_KV_TYPES), default="f16")
    parser.add_argument("--gpu-layers", type=int, default=0)
    for flag in ("cpu-moe", "bos", "special", "pure", "flat-imatrix", "repack", "verbose"):
        parser.add_argument(f"--{flag}", action="store_true")
    args = parser.parse_args()
    try:
        _run(args)
    except PeerError as error:
        sys.exit(f"peer: {error}")


def _run(args: argparse.Namespace) -> None:
    if args.command == "quantize":
        if len(args.rest) != 2:
            raise PeerError("quantize IN.gguf OUT.gguf TYPE")
        options = {"threads": args.threads, "pure": args.pure, "flat_imatrix": args.flat_imatrix, "folder": args.lib}
        quantize(args.model, args.rest[0], args.rest[1], **options)
        return
    with Peer(
        args.model,
        context=args.ctx,
        threads=args.threads,
        kv=args.kv,
        batch=args.batch,
        gpu_layers=args.gpu_layers,
        cpu_moe=args.cpu_moe,
        repack=args.repack or args.command == "bench",
        vocabulary_only=args.command == "tokenize",
        folder=args.lib,
        verbose=args.verbose,
    ) as peer:
        if args.command == "tokenize":
            print(json.dumps(peer.tokenize(args.text, bos=args.bos, special=args.special)))
        elif args.command == "greedy":
            print(",".join(map(str, peer.greedy(parse_tokens(args.tokens), args.n))))
        elif args.command == "bench":
            print(json.dumps({"model": str(args.model), "threads": args.threads, **peer.bench(args.p, args.n)}))
        else:
            tokens = parse_tokens(args.tokens)
            logits = peer.read(tokens, all_rows=True)
            for i, row in enumerate(logits):
                best = np.argsort(-row, kind="stable")[:5]
                print(i, tokens[i], " ".join(f"{token}:{row[token]:.4f}" for token in best))
            if args.out:
                np.savez_compressed(args.out, tokens=np.array(tokens, np.int32), logits=logits)


if __name__ == "__main__":
    main()

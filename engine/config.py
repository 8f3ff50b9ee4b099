"""The engine's command line, as one frozen struct.

Knows the flags and their limits, nothing of what they do. A wrong command line ends the process with exit code 2 and a
message on stderr, before anything is loaded.
"""

import argparse
import difflib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

MAX_TOKEN_COUNT = 2**31 - 1
MAX_POOL_WORKERS = 256


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asked for. What was really allocated is in the session's `info()`."""

    model: Path | None = None  # a GGUF file or a pack directory; None = the default pack
    ple_gguf: Path | None = None  # the file of the n-gram table, where it is not among the model's shards
    backend: Literal["auto", "cpu", "cuda"] = "auto"
    max_context: int | None = None  # cells; None = what the model was trained for, at most 8192
    prefill: int = 512  # tokens of a prompt chunk
    vram_budget_mib: int | None = None  # at most so much of the card's memory; None = what is free
    vram_reserve_mib: int = 512  # of the card's free memory, left to others
    graphs: bool = True  # windows are captured; False launches kernel by kernel, for debugging
    pool_workers: int = 0  # threads of the expert pool; 0 = the physical cores of the affinity mask
    eos_ids: tuple[int, ...] | None = None  # in place of the model's own stop ids; () = none
    deterministic: bool = False
    window_hashes: bool = False  # write a digest of every window's logits to stderr
    log_file: Path | None = None  # takes what would go to stderr


class _Parser(argparse.ArgumentParser):
    """argparse with near matches for a flag that it does not know."""

    def parse_config(self, argv: Sequence[str]) -> argparse.Namespace:
        namespace, unknown = self.parse_known_args(argv)
        if unknown:
            self._refuse(unknown[0])
        return namespace

    def _refuse(self, word: str) -> NoReturn:
        if not word.startswith("-"):
            self.error(f"unexpected argument {word!r}; a model is given as --model {word}")
        flag = word.partition("=")[0]
        known = [name for action in self._actions for name in action.option_strings]
        near = difflib.get_close_matches(flag, known, n=3, cutoff=0.5)
        self.error(f"unknown flag {flag}" + (f"; did you mean {' or '.join(near)}?" if near else ""))


def _count(low: int, high: int = MAX_TOKEN_COUNT) -> Callable[[str], int]:
    """An argparse type: a decimal integer in low..high."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not low <= (value := int(text[:20])) <= high:
            raise argparse.ArgumentTypeError(f"expected an integer from {low} to {high}, got {text!r}")
        return value

    return parse


def _id_list(text: str) -> tuple[int, ...]:
    parse_id = _count(0)
    return tuple(parse_id(word) for word in text.split(",") if text)


def _make_parser() -> _Parser:
    parser = _Parser(
        prog="terrace-engine",
        description="Runs a language model as a token machine: GEN lines on stdin, token ids on stdout (protocol.md).",
        allow_abbrev=False,
    )
    parser.add_argument("--model", type=Path, metavar="PATH",
                        help="a GGUF file (the first of a split set) or a pack directory; default: the default pack")
    parser.add_argument("--ple-gguf", type=Path, metavar="FILE",
                        help="the file of the per-layer n-gram table, when it is not among the model's shards")
    parser.add_argument("--backend", choices=("auto", "cpu", "cuda"), default="auto", help="default: auto")
    parser.add_argument("--max-context", type=_count(2), metavar="N",
                        help="cells of the context; default: the model's own, at most 8192")
    parser.add_argument("--prefill", type=_count(1), default=512, metavar="CHUNK",
                        help="tokens of a prompt chunk; default: 512")
    parser.add_argument("--vram-budget-mib", type=_count(64), metavar="MIB",
                        help="take at most so much of the card's memory; default: what is free")
    parser.add_argument("--vram-reserve-mib", type=_count(0), default=512, metavar="MIB",
                        help="leave so much of the card's free memory to others; default: 512")
    parser.add_argument("--no-graph", dest="graphs", action="store_false",
                        help="launch kernel by kernel instead of as captured graphs, for debugging")
    parser.add_argument("--pool-workers", type=_count(0, MAX_POOL_WORKERS), default=0, metavar="N",
                        help="threads that compute experts; default 0: the physical cores of the affinity mask")
    parser.add_argument("--eos-ids", type=_id_list, metavar="ID,ID",
                        help="stop ids in place of the model's own; an empty list turns stopping off")
    parser.add_argument("--deterministic", action="store_true",
                        help="the same request gives the same ids, whatever came before it")
    parser.add_argument("--window-hashes", action="store_true",
                        help="write a digest of the logits of every window to stderr, to find where two runs part")
    parser.add_argument("--log-file", type=Path, metavar="FILE", help="append to FILE what would go to stderr")
    return parser  # fmt: skip


def parse_flags(argv: Sequence[str] | None = None) -> EngineConfig:
    """The configuration of a command line (default: this process's); exits 2 if it is wrong."""
    namespace = _make_parser().parse_config(sys.argv[1:] if argv is None else argv)
    return EngineConfig(**vars(namespace))

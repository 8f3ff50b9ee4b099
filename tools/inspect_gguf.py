"""Says what a GGUF file holds, whether it runs here, and what it costs.

    python -m tools.inspect_gguf MODEL.gguf [--context 16384] [--ple-gguf TABLE.gguf]

Give the first file of a split set. Whether a model runs is found out by describing it to the CPU backend, which names the
tensor or the number that it cannot take; nothing is computed, compiled or read from the weights for that. A damaged file is
one line on stderr and exit code 1.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.errors import EngineError
from engine.gguf import ModelFiles, open_model
from engine.gguf.cursor import printable
from engine.tiers.budget import Plan, usable_bytes
from tools.gguf_facts import PARTS, Facts, ranges

_DEFAULT_CONTEXT = 8192
_CHUNK = 512  # tokens of a prompt chunk, as the engine has by default
_MIB, _GIB = 1 << 20, 1 << 30
_ERROR_CHARS = 1200
_TOKENIZERS = ("gpt2", "llama", "gemma4")  # those of the gateway
_CACHE_BYTES_ON_A_CARD = 2  # of a value that the CPU keeps in four


@dataclass(frozen=True)
class Cost:
    """Memory beside the weights at one context, in bytes."""

    total_bytes: int  # state and working memory
    plan: Plan
    state_bytes: int = 0  # 0: the system would not even set it aside
    recurrent_bytes: int = 0  # of the state: what does not grow with the context
    card_state_bytes: int = 0


def weigh(files: ModelFiles, context: int) -> Cost:
    """Describe a model to the CPU backend and add up. Raises BadModel for one that does not run."""
    points = []
    for cells in (_CHUNK, 2 * _CHUNK):
        backend = _described(files, cells)
        points.append((cells, backend.n_bytes))
        backend.close()
    plan = Plan.through(*points)
    try:
        backend = _described(files, context)
    except MemoryError:
        return Cost(plan.bytes_for(context), plan)
    total_bytes, state = backend.n_bytes, [(entry.positional, entry.array) for entry in backend.state]
    backend.close()
    recurrent = sum(array.nbytes for positional, array in state if not positional)
    cached = sum(array.size for positional, array in state if positional and array.dtype == np.float32)
    return Cost(total_bytes, plan, sum(array.nbytes for _, array in state), recurrent,
                recurrent + _CACHE_BYTES_ON_A_CARD * cached)


def _described(files: ModelFiles, context: int):
    """A CPU backend that knows the model; none of its memory is touched."""
    from engine.backend.cpu import isa

    isa.prepare_numba()
    from engine.backend.cpu.backend import CpuBackend
    from engine.model.base import Hyper, Tensors
    from engine.model.registry import architecture
    from engine.session import vocabulary_rows

    hyper, tensors = Hyper(files), Tensors(files.tensors)
    describe = architecture(hyper.arch).describe
    vocabulary_rows(files, hyper, tensors)
    backend = CpuBackend(workers=0, max_context=context, max_rows=min(_CHUNK, context))
    try:
        describe(backend, hyper, tensors)
        tensors.check_all_used(hyper)
    except BaseException:
        backend.close()
        raise
    return backend


def report(files: ModelFiles, context: int | None) -> Iterator[str]:
    """The lines of the table."""
    facts = Facts(files)
    part = next((part for part in PARTS if part.is_it(facts)), None)
    yield from _files(files)
    yield from _model(facts)
    yield from _tokenizer(facts)
    yield from _weights(facts)
    yield ""
    if part is not None:
        yield row("runs alone", f"no: it is {part.what}; it belongs to {part.belongs_to}")
        return
    if not facts.architecture:
        yield row("runs", "no: the metadata lacks general.architecture")
        return
    trained = facts.integer("context_length")
    context = context or min(trained or _DEFAULT_CONTEXT, _DEFAULT_CONTEXT)
    try:
        cost = weigh(files, context)
    except EngineError as error:
        yield row("runs", f"no: {printable(str(error), _ERROR_CHARS)}")
        yield from _places(facts, 0)
        return
    yield row("runs", "yes, on the CPU")
    yield from _cost(cost, context, trained)
    yield from _places(facts, cost.card_state_bytes)


def row(name: str, text: str) -> str:
    """One line of the table."""
    return f"{name:<16}{text}".rstrip()


def _files(files: ModelFiles) -> Iterator[str]:
    sizes = [path.stat().st_size for path in files.paths]
    more = f" and {len(sizes) - 1} more files" if len(sizes) > 1 else ""
    yield row("file", f"{printable(files.paths[0].name)}{more}, {_size(sum(sizes))}")


def _model(facts: Facts) -> Iterator[str]:
    name = facts.text("general.name")
    yield row("architecture", (printable(facts.architecture) or "not named") + (f" ({name})" if name else ""))
    if trained := facts.integer("context_length"):
        yield row("trained for", f"{trained:,} tokens of context")
    if heads := facts.integer("attention.head_count"):
        width = facts.integer("embedding_length")
        dim = facts.integer("attention.key_length_mla") or facts.integer("attention.key_length", width // heads)
        window = facts.integer("attention.sliding_window")
        latent = facts.integer("attention.kv_lora_rank")
        parts = [f"{heads} heads of {dim}" if latent else
                 f"{heads} heads of {dim} on {facts.integer('attention.head_count_kv', heads)} cached"]
        parts += [f"cells of {latent} + {facts.integer('rope.dimension_count')}"] * bool(latent)
        yield row("width", f"{width:,}; {'; '.join(parts)}" + (f"; window {window:,}" if window else ""))
    kinds = facts.kinds()
    for i, (kind, numbers) in enumerate(kinds):
        where = f" ({ranges(numbers)})" if len(kinds) > 1 else ""
        yield row("" if i else "layers", f"{len(numbers)} × {kind}{where}")
    if facts.draft_blocks:
        what = "draft blocks, which this version does not use yet" if kinds else "draft blocks"
        yield row("" if kinds else "layers", f"{len(facts.draft_blocks)} × {what} ({ranges(facts.draft_blocks)})")
    down = next((t for t in facts.tensors.values() if "ffn_down_exps" in t.name and len(t.shape) == 3), None)
    if down is not None:
        yield row("experts", f"{down.shape[0]}, {facts.integer('expert_used_count')} a token, {down.shape[2]:,} wide")


def _tokenizer(facts: Facts) -> Iterator[str]:
    from gateway.text.pretokenize import PATTERNS

    model = facts.text("tokenizer.ggml.model")
    if not model or model == "no_vocab":
        yield row("tokenizer", "none: it can be run by token ids only")
        return
    pre = facts.text("tokenizer.ggml.pre") or "default"
    rule = f", rule {pre}" if model == "gpt2" else ""
    known = model in _TOKENIZERS and (model != "gpt2" or pre in PATTERNS)
    length = getattr(facts.files.metadata.get("tokenizer.ggml.tokens"), "length", 0)
    template = "with" if facts.text("tokenizer.chat_template") else "without"
    yield row("tokenizer", f"{model}{rule}, {length:,} tokens, {template} a chat template"
              + ("" if known else "; the gateway does not know it"))


def _weights(facts: Facts) -> Iterator[str]:
    groups = facts.by_role()
    if not groups:
        return
    yield ""
    yield f"{'weights':<32}{'tensors':>8}{'MiB':>12}  formats"
    for group in groups:
        formats = ", ".join(name if len(group.by_format) == 1 else f"{name} {_mib(n)}" for name, n in group.by_format.items())
        yield f"{group.role:<32}{group.count:>8}{_mib(group.n_bytes):>12}  {formats}"
    yield f"{'all':<32}{len(facts.tensors):>8}{_mib(facts.n_bytes):>12}"


def _cost(cost: Cost, context: int, trained: int) -> Iterator[str]:
    yield row("context", f"{context:,} tokens" + (f" (trained for {trained:,})" if trained and context > trained else ""))
    if cost.state_bytes:
        fixed = f", {_size(cost.recurrent_bytes)} of it whatever the context" if cost.recurrent_bytes else ""
        yield row("state", _size(cost.state_bytes) + fixed)
    usable = usable_bytes()
    fits = "fits" if cost.state_bytes and cost.total_bytes <= usable else "does not fit"
    yield row("memory", f"{_size(cost.total_bytes)} beside the weights, with working memory for prompt chunks of {_CHUNK}: "
              f"{fits} into the {_size(usable)} that are free")
    yield row("", f"{cost.plan.cell_bytes:,} bytes a token of context; {cost.plan.most_cells(usable):,} would fit")


def _places(facts: Facts, card_state_bytes: int) -> Iterator[str]:
    """Where the weights can be, and what is read of them."""
    experts, read = facts.expert_bytes()
    drafts = sum(group.n_bytes for group in facts.by_role() if group.role in ("draft blocks", "table of layer inputs"))
    rest = facts.n_bytes - drafts - experts
    embedding = facts.tensors.get("token_embd.weight")
    looked_up = embedding.n_bytes if embedding is not None and "output.weight" in facts.tensors else 0  # one row of it
    yield row("read a token", _size(int(rest - looked_up + read)) + " of weights")
    yield row("RAM", f"{_size(facts.n_bytes)} for all weights, mapped from the file; what does not fit is read again")
    state = f" + {_size(card_state_bytes)} of state" if card_state_bytes else ""
    if experts:
        yield row("VRAM", f"{_size(rest)}{state} with the experts elsewhere, {_size(rest + experts)}{state} with them")
    else:
        yield row("VRAM", f"{_size(rest)}{state}")


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / _MIB:,.1f}"


def _size(n_bytes: int) -> str:
    return f"{n_bytes / _GIB:,.2f} GiB" if n_bytes >= _GIB else f"{_mib(n_bytes)} MiB"


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 2 <= (value := int(text[:20])) <= 2**31 - 1:
        raise argparse.ArgumentTypeError(f"expected an integer from 2 to {2**31 - 1}, got {text!r}")
    return value


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(prog="inspect_gguf", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--context", type=_count, metavar="N", help="tokens; default: the model's own, at most 8192")
    parser.add_argument("--ple-gguf", type=Path, metavar="FILE", help="the n-gram table, where it is a file of its own")
    args = parser.parse_args(argv)
    try:
        with open_model(args.model, args.ple_gguf) as files:
            for line in report(files, args.context):
                print(line)
    except EngineError as error:
        print(f"inspect_gguf: {printable(str(error), _ERROR_CHARS)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

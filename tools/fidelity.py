"""Holds quantized models with real weights to their float twins, the engine beside llama.cpp, on four passages of English.

    python -m tools.fidelity [--only Q4_1,mixture] [--write-json docs/results/fidelity.json]
    python -m tools.fidelity --golden      # the mixture's twin and the peer's distance to it, for the test that needs no peer
    python -m tools.fidelity --model FILE.gguf [--write-json FILE]    # any other model, alone

The files are an upcycled mixture (SmolLM2-135M in Q4_1: the fetched pack), the dense model that it was made from, and what the
peer's quantizer makes of that. A twin is the same file with every weight as F32, by the peer; so a distance to it is what the
rounding of activations costs. Bars: KL(twin, ours) at most 1.15 times KL(twin, peer), and argmax agreement at most 1.5 points
less; KL of the twin read by the engine against the peer 1e-9; a mixture of six layers in F32 says what the dense layers say.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from tools.distance import Distance, coarse_rows, distance
from tools.machine import machine_facts

TEXT = Path(__file__).parents[1] / "tests" / "goldens" / "fidelity_text.txt"
GOLDEN = TEXT.with_name("fidelity_mixture.npz")
TOKENS = 512  # of each passage; with one passage alone the agreement is uncertain by a point
_PASSAGE_BREAK = "\n\n* * *\n\n"
MOST_KL_RATIO, MOST_LESS_AGREEMENT, MOST_TWIN_KL = 1.15, 0.015, 1e-9
MOST_GELU_TWIN_KL = 1e-5  # the peer takes GELU from a table in half precision, so it is off itself
# what the peer's quantizer makes; fewer bits leave nothing of this model to compare
KINDS = ("Q8_0", "Q4_0", "Q5_0", "Q5_1", "IQ4_NL", "Q3_K_M", "IQ4_XS", "Q4_K_M", "Q5_K_M", "Q6_K", "F16", "BF16")
CASES = ("Q4_1", "mixture", *KINDS, "six-layers")


def own_logits(path: Path, passages: list[list[int]]) -> np.ndarray:
    """f32 [all tokens, vocabulary] by the engine."""
    from engine.config import EngineConfig
    from engine.session import load_session
    from packs.manifest import resolve_model

    session = load_session(resolve_model(path), EngineConfig(model=path, max_context=TOKENS))
    try:
        rows = []
        for tokens in passages:
            session.reset()
            for first in range(0, len(tokens), session.window_max):
                logits = session.step(tokens[first : first + session.window_max], logits="all")
                rows.append(np.array(logits))
        return np.concatenate(rows)
    finally:
        session.close()


def peer_logits(path: Path, passages: list[list[int]]) -> np.ndarray:
    """The same by llama.cpp, with a cache in F32 as ours."""
    from tools.peer import Peer

    rows = []
    for tokens in passages:
        with Peer(path, kv="f32", context=TOKENS) as peer:
            rows.append(peer.read(tokens, all_rows=True))
    return np.concatenate(rows)


def tokenize(path: Path) -> list[list[int]]:
    """The first tokens of each passage in a model's vocabulary."""
    from tools.peer import Peer

    with Peer(path, vocabulary_only=True) as peer:
        return [peer.tokenize(passage, bos=True)[:TOKENS] for passage in TEXT.read_text().split(_PASSAGE_BREAK)]


def alone(function: Callable, *arguments: Any) -> Any:
    """Call in a process of its own: the peer and the engine never share one, and its memory is gone afterwards."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        return executor.submit(function, *arguments).result()


def logits_on_disk(function: Callable, path: Path, passages: list[list[int]], *, out: Path) -> np.ndarray:
    """What the function gives in a process of its own, mapped from a file: with a large vocabulary it is gigabytes."""
    alone(_save_logits, function, path, passages, out)
    return np.load(out, mmap_mode="r")


def _save_logits(function: Callable, path: Path, passages: list[list[int]], out: Path) -> None:
    np.save(out, function(path, passages))


def _quantize(source: Path, out: Path, kind: str) -> None:
    from tools.peer import quantize

    quantize(source, out, kind)


@dataclass(frozen=True)
class Case:
    """One file held to its twin."""

    name: str
    formats: dict[str, int]  # matrices a format
    twin_peer: Distance  # of the twin's logits by the peer
    twin_ours: Distance
    twin_read_by_us: Distance  # the twin itself, ours against the peer
    most_twin_kl: float = MOST_TWIN_KL

    @property
    def kl_ratio(self) -> float:
        """Below 1: nearer to the twin than the peer is."""
        return self.twin_ours.kl / self.twin_peer.kl

    @property
    def misses(self) -> list[str]:
        """The bars that are not reached."""
        wrong = []
        if self.kl_ratio > MOST_KL_RATIO:
            wrong.append(f"KL is {self.kl_ratio:.2f} times the peer's")
        if self.twin_ours.agreement < self.twin_peer.agreement - MOST_LESS_AGREEMENT:
            wrong.append(f"argmax agreement {self.twin_ours.agreement:.3f} against {self.twin_peer.agreement:.3f}")
        if self.twin_read_by_us.kl > self.most_twin_kl:
            wrong.append(f"KL of the twin itself is {self.twin_read_by_us.kl:.1e}")
        return wrong

    def as_json(self) -> dict[str, Any]:
        """For the results file."""
        return asdict(self) | {"kl_ratio": round(self.kl_ratio, 4), "misses": self.misses}


def examine(name: str, path: Path, passages: list[list[int]], *, folder: Path) -> tuple[Case, np.ndarray, np.ndarray]:
    """The case, and the twin's and the peer's logits."""
    twin = folder / "twin.gguf"
    alone(_quantize, path, twin, "F32")
    files = {
        "reference": (peer_logits, twin), "twin_by_us": (own_logits, twin), "peer": (peer_logits, path),
        "ours": (own_logits, path)}  # fmt: skip
    logits = {who: logits_on_disk(*what, passages, out=folder / f"{who}.npy") for who, what in files.items()}
    twin.unlink()
    architecture, formats = _contents(path)
    apart = (distance(logits["reference"], logits[who]) for who in ("peer", "ours", "twin_by_us"))
    most = MOST_GELU_TWIN_KL if architecture.startswith("gemma") else MOST_TWIN_KL
    return Case(name, formats, *apart, most_twin_kl=most), logits["reference"], logits["peer"]


def _contents(path: Path) -> tuple[str, dict[str, int]]:
    """The architecture, and how many matrices of each format there are."""
    from engine.gguf import open_model

    counts: dict[str, int] = {}
    with open_model(path) as model:
        architecture = str(model.metadata["general.architecture"])
        for tensor in model.tensors.values():
            if len(tensor.shape) > 1:
                counts[tensor.format.name] = counts.get(tensor.format.name, 0) + 1
    return architecture, counts


def examine_six_layers(source: Path, passages: list[list[int]], *, folder: Path) -> dict[str, Any]:
    """The F32 mixture of a dense model's first six layers against those layers, both by the engine, and the peer's of both."""
    from tools.float_twins import write_float_twins

    dense, mixture = write_float_twins(source, folder)
    ours, mixed, peer = (alone(f, p, passages[:1]) for f, p in (
        (own_logits, dense), (own_logits, mixture), (peer_logits, dense)))  # fmt: skip
    result = {"dense_against_mixture": distance(ours, mixed), "peer_against_dense": distance(peer, ours),
              "peer_against_mixture": distance(peer, mixed)}  # fmt: skip
    misses = [f"{key}: KL {d.kl:.1e}" for key, d in result.items() if d.kl > MOST_TWIN_KL]
    return {key: asdict(value) for key, value in result.items()} | {"misses": misses}


def write_golden(mixture: Path, passages: list[list[int]], *, folder: Path) -> None:
    """The twin's likeliest tokens in the first passage, and how far the peer is from it measured on those alone."""
    case, reference, peer = examine("mixture", mixture, passages[:1], folder=folder)
    ids, log_p, rest = coarse_rows(reference)
    np.savez_compressed(
        GOLDEN, tokens=np.array(passages[0], np.int32), model_bytes=mixture.stat().st_size, ids=ids, log_p=log_p, rest=rest,
        peer_kl=distance(reference, peer, ids=ids).kl, peer_agreement=case.twin_peer.agreement)  # fmt: skip
    print(GOLDEN.name, f"{GOLDEN.stat().st_size / 1024:.0f} KiB", case.as_json())


def main() -> int:
    """Command line entry; the exit code is 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mixture", type=Path, help="the upcycled model, a file or pack (default: the fetched pack)")
    parser.add_argument("--model", type=Path, metavar="FILE", help="hold this file alone to its twin, none of the cases")
    parser.add_argument("--only", default="", help="comma-separated cases: " + ", ".join(CASES))
    parser.add_argument("--write-json", type=Path, metavar="FILE")
    parser.add_argument("--golden", action="store_true", help=f"write {GOLDEN.name} and end")
    args = parser.parse_args()
    from packs.manifest import fetched_pack, resolve_model
    from tools.one_expert import write_dense

    mixture = args.model or resolve_model(args.mixture or fetched_pack()).model
    wanted = [args.model.stem] if args.model else args.only.split(",") if args.only else CASES
    document: dict[str, Any] = {"command": "python -m tools.fidelity " + " ".join(sys.argv[1:]), "cases": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        passages = alone(tokenize, mixture)
        if args.golden:
            write_golden(mixture, passages, folder=folder)
            return 0
        source = folder / "Q4_1.gguf"
        if not args.model:
            write_dense(mixture, source)
        for kind in wanted:
            if kind == "six-layers":
                found = examine_six_layers(source, passages, folder=folder)
            else:
                path = args.model or {"Q4_1": source, "mixture": mixture}.get(kind, folder / f"{kind}.gguf")
                if kind in KINDS:
                    alone(_quantize, source, path, kind)
                found = examine(kind, path, passages, folder=folder)[0].as_json()
                if kind in KINDS:
                    path.unlink()
            document["cases"][kind] = found
            print(kind, json.dumps(found), flush=True)
    document |= {"tokens": sum(map(len, passages)), "text": TEXT.name, "machine": machine_facts(),
                 "peer_version": "llama.cpp v0.5.0 (@node-llama-cpp/linux-x64 3.22.1)"}  # fmt: skip
    if args.write_json:
        args.write_json.write_text(json.dumps(document, indent=1) + "\n")
    return int(any(found["misses"] for found in document["cases"].values()))


if __name__ == "__main__":
    sys.exit(main())

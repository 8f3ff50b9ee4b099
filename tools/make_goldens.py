"""Makes the committed goldens under tests/goldens from independent references.

    python -m tools.make_goldens peer [NAME…]   # llama.cpp: logits and greedy ids (see tools/peer.py), of all by default
    python -m tools.make_goldens sparse         # Hugging Face: qwen4exp with a binding budget (see tools/hf_reference.py)
    python -m tools.make_goldens gelu [NAME…]   # Hugging Face: gemma3, gemma4 (see tools/hf_gemma.py), and llama.cpp beside

A golden holds no weights: the model is made again from its seed, and `digest` tells whether it still is the same one.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tools.distance import distance
from tools.make_tiny_gguf import write_model
from tools.random_model import ARCHITECTURES, RandomModel, random_model

FOLDER = Path(__file__).parents[1] / "tests" / "goldens"
PROMPT_TOKENS, GREEDY_TOKENS = 70, 32
SPARSE_TOKENS, SPARSE_CACHED, SPARSE_BUDGET = 96, 16, 16
GELU = ("gemma3", "gemma4", "gemma4-dense")  # llama.cpp takes it from a table in half precision: not exact
_LEAST_MARGIN = 2e-3  # between the best two logits of a greedy step
_LEAST_GAP = 1e-5  # between the last value kept and the first one dropped in a selection of blocks or experts
_MOST_TABLE_KL = 1e-5  # of the peer's GELU; more means that a choice of experts hung on it
_MOST_SEEDS = 200


def prompt(model: RandomModel, n: int, seed: int) -> np.ndarray:
    """Token ids i32 [n]: random, with ends of text inside (two in a row), and id 0, which is an ordinary token."""
    tokens = np.random.default_rng(seed + 1).integers(0, model.sizes.vocab, n).astype(np.int32)
    tokens[[10, 11, 30, 61]] = model.metadata.get("qwen4exp.ple.eos_token_id", 5)
    tokens[40] = 0
    return tokens


def save(name: str, model: RandomModel, *, arguments: dict[str, Any], **arrays: np.ndarray) -> None:
    """Write tests/goldens/NAME.npz; `arguments` are what random_model was called with."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.npz"
    np.savez_compressed(path, arguments=json.dumps(arguments), digest=model.digest(), **arrays)
    print(path.name, f"{path.stat().st_size / 1024:.0f} KiB", arguments)


def make_peer_golden(arch: str) -> None:
    """Logits of a prompt and a greedy continuation by llama.cpp, for the first seed whose choices are all clear."""
    from tools.peer import Peer

    with tempfile.TemporaryDirectory() as folder:
        for seed in range(_MOST_SEEDS):
            model = random_model(arch, seed=seed)
            tokens = prompt(model, PROMPT_TOKENS, seed)
            (path,) = write_model(Path(folder) / "model.gguf", model)
            with Peer(path, kv="f32", context=256) as peer:
                logits = peer.read(tokens, all_rows=True)
                row, greedy, margin = logits[-1], [], np.inf
                while len(greedy) < GREEDY_TOKENS:
                    second, best = np.sort(row)[-2:]
                    margin = min(margin, best - second)
                    greedy.append(int(row.argmax()))
                    row = peer.read(greedy[-1:])[-1]
            if margin >= _LEAST_MARGIN and len(set(greedy)) > GREEDY_TOKENS // 4:
                arrays = {"tokens": tokens, "logits": logits, "greedy": np.array(greedy, np.int32)}
                save(arch, model, arguments={"architecture": arch, "seed": seed}, **arrays)
                return
    raise SystemExit(f"{arch}: no seed below {_MOST_SEEDS} gives clear choices")


def make_gelu_golden(arch: str) -> None:
    """Logits and greedy ids by Hugging Face for the first seed whose choices are all clear, and llama.cpp's logits beside."""
    from tools.hf_gemma import run
    from tools.peer import Peer

    for seed in range(_MOST_SEEDS):
        model = random_model(arch, seed=seed)
        tokens = prompt(model, PROMPT_TOKENS, seed)
        logits, greedy, margin = run(model, tokens, steps=GREEDY_TOKENS)
        if margin < _LEAST_MARGIN or len(set(greedy.tolist())) <= GREEDY_TOKENS // 4:
            continue
        with tempfile.TemporaryDirectory() as folder:
            (path,) = write_model(Path(folder) / "model.gguf", model)
            with Peer(path, kv="f32", context=256) as peer:
                peer_logits = peer.read(tokens, all_rows=True)
        apart = distance(peer_logits, logits)
        if apart.worst_kl <= _MOST_TABLE_KL:
            arrays = {"tokens": tokens, "logits": logits, "greedy": greedy, "peer": peer_logits}
            save(arch, model, arguments={"architecture": arch, "seed": seed}, **arrays)
            print("the peer's KL:", apart.worst_kl)
            return
    raise SystemExit(f"{arch}: no seed below {_MOST_SEEDS} gives clear choices")


def make_sparse_golden() -> None:
    """qwen4exp where sparse attention drops blocks, by Hugging Face's class, for the first seed without near-ties."""
    from tools.hf_reference import TieError, run

    for seed in range(_MOST_SEEDS):
        arguments = {"architecture": "qwen4exp", "seed": seed, "index_budget": SPARSE_BUDGET}
        model = random_model(**arguments)
        tokens = prompt(model, SPARSE_TOKENS, seed)
        try:
            logits, cached = run(model, tokens, cached_steps=SPARSE_CACHED, least_gap=_LEAST_GAP)
        except TieError as error:
            print(f"seed {seed}: {error}")
            continue
        print("cached against full:", np.abs(cached - logits[-SPARSE_CACHED:]).max(), "of", np.abs(logits).max())
        save("qwen4exp-sparse", model, arguments=arguments, tokens=tokens, logits=logits, cached=cached)
        return
    raise SystemExit(f"no seed below {_MOST_SEEDS} is free of near-ties")


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("peer", "sparse", "gelu"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ARCHITECTURES)}")
    args = parser.parse_args()
    if args.what == "sparse":
        make_sparse_golden()
    elif args.what == "gelu":
        for arch in args.names or GELU:
            make_gelu_golden(arch)
    else:
        for arch in args.names or [arch for arch in ARCHITECTURES if arch not in GELU]:
            make_peer_golden(arch)


if __name__ == "__main__":
    main()

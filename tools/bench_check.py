"""Proves that a mixture's numbers behave before it is timed: tokens spread over the experts, and activations stay small.

A file whose routing has collapsed reads a few experts from the processor's cache and says nothing about a real model.
Runs the model on this process's CPU backend.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

LEAST_SPREAD = 120 / 128  # experts that the tokens must reach in every layer
MOST_SHARE = 0.6  # of all routes, those to the most used quarter of a layer's experts
LARGEST = 1000.0  # |x| of the residual; f16 ends at 65504
MOST_GROWTH = 2.0  # root mean square of the residual behind the last layer; the embedding has 1


class UnfitModel(Exception):
    """The file is no benchmark; the text says why."""


@dataclass(frozen=True)
class Report:
    """What the tokens did, per layer where it is a list."""

    tokens: int
    experts: int
    distinct_experts: list[int]
    top_quarter_share: list[float]
    largest_residual: float
    residual_rms: float

    def as_json(self) -> dict:
        """For the results file."""
        return asdict(self)

    def refuse_unfit(self) -> None:
        """Raise UnfitModel unless the figures are within the bounds above."""
        spread = min(self.distinct_experts) / self.experts
        if spread < LEAST_SPREAD:
            raise UnfitModel(f"a layer uses {min(self.distinct_experts)} of {self.experts} experts for {self.tokens} tokens")
        if max(self.top_quarter_share) > MOST_SHARE:
            raise UnfitModel(f"a quarter of the experts takes {max(self.top_quarter_share):.0%} of a layer's routes")
        if not self.largest_residual <= LARGEST or not self.residual_rms <= MOST_GROWTH:
            raise UnfitModel(f"the residual grows to {self.residual_rms:.3g}, at most {self.largest_residual:.3g}")


def examine(path: Path, *, tokens: int = 2048, workers: int = 0) -> Report:
    """Read random tokens; raises UnfitModel for a model without experts."""
    from engine.backend.cpu import isa

    isa.prepare_numba()
    from engine.backend.cpu.backend import CpuBackend
    from engine.gguf import open_model
    from engine.model.base import Hyper, Tensors
    from engine.model.registry import architecture

    with open_model(path) as files:
        hyper, tensors = Hyper(files), Tensors(files.tensors)
        chunk = min(512, tokens)
        backend = CpuBackend(workers=workers, max_context=tokens, max_rows=chunk)
        try:
            architecture(hyper.arch).describe(backend, hyper, tensors)
            if not backend.usage:
                raise UnfitModel(f"{path} has no experts")
            ids = np.random.default_rng(1).integers(0, tensors["token_embd.weight"].shape[0], tokens).astype(np.int32)
            largest = squares = 0.0
            for position in range(0, tokens, chunk):
                part = ids[position : position + chunk]
                backend.run(part, position=position, out_rows=1)
                residual = backend.program.named["stream"].view(np.float32)[: len(part) * hyper.integer("embedding_length")]
                largest = max(largest, float(np.abs(residual).max()))
                squares += float((residual.astype(np.float64) ** 2).mean()) * len(part)
            usage = np.sort(np.stack(backend.usage), axis=1)[:, ::-1]  # [layers, experts]
        finally:
            backend.close()
    experts = usage.shape[1]
    return Report(
        tokens=tokens,
        experts=experts,
        distinct_experts=(usage > 0).sum(axis=1).tolist(),
        top_quarter_share=(usage[:, : experts // 4].sum(axis=1) / usage.sum(axis=1)).round(4).tolist(),
        largest_residual=round(largest, 3),
        residual_rms=round((squares / tokens) ** 0.5, 4),
    )

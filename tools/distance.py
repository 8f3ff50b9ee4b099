"""How far one model's logits are from another's: Kullback-Leibler divergence and agreement of the likeliest token.

Also on a coarse view (the reference's likeliest tokens and one bucket for the rest), which is small enough to commit and never
gives more than the whole. Float64 throughout; rows are taken a few at a time, as a vocabulary is large.
"""

from dataclasses import dataclass

import numpy as np

COARSE = 24  # tokens of a row in the coarse view
_ROWS_AT_ONCE = 32


@dataclass(frozen=True)
class Distance:
    """Means over rows, and the largest KL of a row."""

    kl: float
    worst_kl: float
    agreement: float  # part of the rows with the same likeliest token


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of probabilities, float64, of rows [n, vocabulary]."""
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def distance(reference: np.ndarray, other: np.ndarray, *, ids: np.ndarray | None = None) -> Distance:
    """KL(reference || other) of logits f32 [rows, vocabulary]; with ids [rows, k] on those tokens and the rest of each row."""
    kl = []
    for first in range(0, len(reference), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        log_p, log_q = log_softmax(reference[part]), log_softmax(other[part])
        if ids is not None:
            log_p, log_q = (coarse(rows, ids[part]) for rows in (log_p, log_q))
        kl.append((np.exp(log_p) * (log_p - log_q)).sum(axis=1))
    rows = np.concatenate(kl)
    agreement = float((reference.argmax(axis=1) == other.argmax(axis=1)).mean())
    return Distance(float(rows.mean()), float(rows.max()), agreement)


def coarse(log_p: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """[n, k + 1] from log-probabilities [n, vocabulary]: the tokens `ids` [n, k], and all others together."""
    kept = np.take_along_axis(log_p, ids.astype(np.int64), axis=1)
    others = np.maximum(1.0 - np.exp(kept).sum(axis=1, keepdims=True), 1e-300)
    return np.concatenate([kept, np.log(others)], axis=1)


def coarse_rows(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The likeliest tokens of each row: ids i32 [n, k], their log-probabilities f32 [n, k], and that of the rest f32 [n]."""
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :COARSE].astype(np.int32)
    parts = [coarse(log_softmax(logits[i : i + _ROWS_AT_ONCE]), ids[i : i + _ROWS_AT_ONCE])
             for i in range(0, len(logits), _ROWS_AT_ONCE)]  # fmt: skip
    rows = np.concatenate(parts).astype(np.float32)
    return ids, rows[:, :-1], rows[:, -1]

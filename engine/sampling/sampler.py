"""Picks the next token from a row of logits.

Order: penalties, top_k, top_p, min_p, temperature, draw. Pure: the same row, settings, seed and position give the same
token, whatever was computed before. Sums are float64 in the order of the candidates.
"""

import math

import numpy as np
from numpy.typing import NDArray

from engine.messages import Sampling
from engine.sampling.candidates import top_ids
from engine.sampling.philox import uniform

_FIRST_CANDIDATES = 64  # how far top_p looks before it looks further
_NO_HISTORY = np.empty(0, dtype=np.int32)


def has_penalties(sampling: Sampling) -> bool:
    """Whether the text so far plays a part in the choice."""
    neutral = sampling.penalty_repeat == 1.0 and sampling.penalty_freq == 0.0 and sampling.penalty_present == 0.0
    return sampling.penalty_last_n > 0 and not neutral


def pick(
    logits: NDArray[np.float32],
    sampling: Sampling,
    *,
    seed: int,
    position: int,
    history: NDArray[np.int32] = _NO_HISTORY,
) -> int:
    """The token for the absolute `position`, from logits [vocab]; `history` is what is before it, prompt included."""
    if history.size and has_penalties(sampling):
        logits = penalize(logits, sampling, history=history)
    if sampling.temperature == 0.0:
        return int(logits.argmax())  # the first of equal values
    ids, weights = _candidates(logits, sampling)
    cumulative = np.cumsum(weights)
    drawn = np.searchsorted(cumulative, uniform(seed, position) * cumulative[-1], side="right")
    return int(ids[min(int(drawn), ids.size - 1)])


def penalize(
    logits: NDArray[np.float32], sampling: Sampling, *, history: NDArray[np.int32]
) -> NDArray[np.float32]:
    """A copy of logits [vocab] with the last `penalty_last_n` tokens of the history made less likely."""
    ids, counts = np.unique(history[-sampling.penalty_last_n :], return_counts=True)
    values = logits[ids].astype(np.float64)
    values = np.where(values > 0, values / sampling.penalty_repeat, values * sampling.penalty_repeat)
    penalized = logits.copy()
    penalized[ids] = values - counts * sampling.penalty_freq - sampling.penalty_present
    return penalized


def _candidates(logits: NDArray[np.float32], sampling: Sampling) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Ids and unnormalised probabilities of the tokens that may be drawn."""
    if sampling.top_k == 0:
        ids, values = _candidates_of_all(logits, sampling)
    else:
        ids = top_ids(logits, sampling.top_k)
        values = logits[ids].astype(np.float64)
        if sampling.top_p < 1.0:
            cumulative = np.cumsum(np.exp(values - values[0]))
            values = values[: _prefix_size(cumulative, sampling.top_p * cumulative[-1])]
        if sampling.min_p > 0.0:
            values = values[values >= values[0] + math.log(sampling.min_p)]
        ids = ids[: values.size]
    with np.errstate(over="ignore"):  # a tiny temperature may send the unlikely ones to minus infinity: weight 0
        return ids, np.exp((values - values.max()) / sampling.temperature)


def _candidates_of_all(
    logits: NDArray[np.float32], sampling: Sampling
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The whole vocabulary under top_p and min_p; in the order of ids where neither cuts anything."""
    if sampling.top_p == 1.0 and sampling.min_p == 0.0:
        return np.arange(logits.size), logits.astype(np.float64)
    top = float(logits.max())
    if sampling.top_p == 1.0:
        n_kept = int(np.count_nonzero(logits >= top + math.log(sampling.min_p)))
        ids = top_ids(logits, n_kept)
        return ids, logits[ids].astype(np.float64)
    wanted = sampling.top_p * float(np.exp(logits.astype(np.float64) - top).sum())
    n_looked_at = _FIRST_CANDIDATES
    while True:
        ids = top_ids(logits, n_looked_at)
        values = logits[ids].astype(np.float64)
        cumulative = np.cumsum(np.exp(values - top))
        if cumulative[-1] >= wanted or ids.size == logits.size:
            break
        n_looked_at *= 16
    values = values[: _prefix_size(cumulative, wanted)]
    if sampling.min_p > 0.0:
        values = values[values >= top + math.log(sampling.min_p)]
    return ids[: values.size], values


def _prefix_size(cumulative: NDArray[np.float64], wanted: float) -> int:
    """How many candidates it takes to reach `wanted`, at least one, at most all."""
    return min(int(np.searchsorted(cumulative, wanted, side="left")) + 1, cumulative.size)

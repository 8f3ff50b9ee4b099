"""Log-probabilities of the model's own distribution, before penalties and temperature. Pure."""

import numpy as np
from numpy.typing import NDArray

from engine.sampling.candidates import top_ids


def log_probabilities(
    logits: NDArray[np.float32], token: int, *, n_top: int
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """That of `token`, and the n_top likeliest tokens with theirs, likeliest first, from logits [vocab]."""
    top = float(logits.max())
    total = float(np.exp(logits - np.float32(top)).sum(dtype=np.float64))
    log_total = top + float(np.log(total))
    # adding 0.0 turns a negative zero into a positive one
    alternatives = tuple((int(i), float(logits[i]) - log_total + 0.0) for i in top_ids(logits, n_top)) if n_top else ()
    return float(logits[token]) - log_total + 0.0, alternatives

"""The likeliest tokens of a row of logits, in one fixed order: descending, ties to the lower id.

Pure functions on a vocabulary of a quarter of a million, so nothing here sorts a whole row unless it is asked to.
"""

import numpy as np
from numpy.typing import NDArray

_GROUPS = 1024  # column maxima that bound the n-th largest value from below


def top_ids(logits: NDArray[np.float32], n: int) -> NDArray[np.intp]:
    """The ids of the n largest values of logits [vocab], likeliest first; all where n reaches the vocabulary."""
    vocab = logits.size
    if n >= vocab:
        return np.argsort(-logits, kind="stable")
    rows = vocab // _GROUPS
    if n > _GROUPS or rows < 4:
        bound = np.partition(logits, vocab - n)[vocab - n]
    else:
        # n groups have a maximum of at least `bound`, so at least n values do: a few hundred candidates are left
        group_maxima = logits[: rows * _GROUPS].reshape(rows, _GROUPS).max(axis=0)
        bound = np.partition(group_maxima, _GROUPS - n)[_GROUPS - n]
    ids = np.flatnonzero(logits >= bound)  # ascending, so that a stable sort keeps the lower id first
    return ids[np.argsort(-logits[ids], kind="stable")[:n]]

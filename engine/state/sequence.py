"""One sequence's state as a whole: its length, its checkpoints, and what of it can be cut.

Positional arrays (keys, values, tokens) are addressed by position: behind the length they are simply overwritten later.
Recurrent arrays are a summary of everything so far: only a copy brings an earlier length back. The arrays themselves belong
to the backend.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.backend.base import StateArray
from engine.errors import Internal


@dataclass(frozen=True)
class Checkpoint:
    """A sequence at one length. Valid only while the first `position` cells are still those of the same tokens."""

    position: int
    recurrent: tuple[np.ndarray, ...]

    @property
    def n_bytes(self) -> int:
        """Memory of the copies."""
        return sum(array.nbytes for array in self.recurrent)


class SequenceState:
    """The arrays of one sequence and how many cells of them count."""

    def __init__(self, arrays: Sequence[StateArray]) -> None:
        self._arrays = tuple(arrays)
        self._recurrent = tuple(entry.array for entry in arrays if not entry.positional)
        self.position = 0

    @property
    def n_bytes(self) -> int:
        """Memory of all arrays."""
        return sum(entry.array.nbytes for entry in self._arrays)

    @property
    def can_cut(self) -> bool:
        """Whether any shorter length can be had without a checkpoint."""
        return not self._recurrent

    def reset(self) -> None:
        """An empty sequence."""
        self.position = 0
        for array in self._recurrent:
            array.fill(0)

    def save(self) -> Checkpoint:
        """A checkpoint of the present length."""
        return Checkpoint(self.position, tuple(array.copy() for array in self._recurrent))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint of this sequence."""
        if checkpoint.position > self.position:
            raise Internal(f"a checkpoint of {checkpoint.position} cells cannot extend a sequence of {self.position}")
        for array, kept in zip(self._recurrent, checkpoint.recurrent, strict=True):
            array[...] = kept
        self.position = checkpoint.position

    def cut(self, n: int) -> None:
        """Keep the first n cells. With recurrent state only 0 and the present length can be had: restore a checkpoint."""
        if not 0 <= n <= self.position:
            raise Internal(f"cut to {n} cells: the sequence has {self.position}")
        if n == 0:
            self.reset()
        elif n < self.position:
            if not self.can_cut:
                raise Internal(f"cut to {n} cells: recurrent state at {self.position} has no way back without a checkpoint")
            self.position = n

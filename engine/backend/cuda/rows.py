"""Handles for activations of a window, and what is put off about them: a norm that its reader takes along, and where the
last product of a block goes."""

from dataclasses import dataclass, field
from typing import Protocol

from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.products import Source


class Operation(Protocol):
    """A recorded step of the model."""

    def window(self, tokens: int) -> list[Launch]:
        """Launches for windows of up to `tokens`."""
        ...


@dataclass
class Target:
    """Where a block's result goes: rows f32 [T, width], added to what is there (times scale) or in its place."""

    out: Buffer
    accumulate: bool = False
    scale: float = 1.0


@dataclass(eq=False)
class Rows:
    """f32 [T * per_token, width]. `normed`: not computed yet, the norm of another's rows; `target`: of the block that will
    write these rows, as long as nothing has read them; `writes` counts how often the buffer was written, by whom ever."""

    buffer: Buffer
    width: int
    per_token: int = 1
    writes: list[int] = field(default_factory=lambda: [0])  # one number, shared by all rows of the buffer
    normed: tuple["Rows", int, Buffer | None, float] | None = None  # rows, their writes, weight, eps
    target: Target | None = None

    def source(self) -> Source | None:
        """How a product reads these rows; None if their norm cannot be taken along any more."""
        if self.normed is None:
            return Source(self.buffer, self.width, self.width)
        rows, writes, weight, eps = self.normed
        if rows.writes[0] != writes or weight is None:
            return None
        return Source(rows.buffer, self.width, self.width, weight, eps)

"""What all launches of a prompt's chunk share: the window block, scratch memory, and how many tokens there can be.

Knows no architecture and no kernel.
"""

from dataclasses import dataclass

from engine.backend.cuda.launch import Buffer
from engine.backend.cuda.memory import Memory


@dataclass(frozen=True)
class Chunk:
    """Up to `tokens` tokens; how many there are, and at which position, stands in the window block."""

    window: Buffer
    memory: Memory
    tokens: int
    context: int  # cells of a cache

    @property
    def ids(self) -> Buffer:
        """The chunk's tokens i32 [tokens]."""
        return self.scratch("ids_of_tokens", 4 * self.tokens)

    def rows(self, name: str, width: int, *, per_token: int = 1) -> Buffer:
        """Scratch rows f32 [tokens * per_token, width] under a name that all layers share."""
        return self.memory.scratch(f"prompt.{name}", 4 * self.tokens * per_token * width)

    def scratch(self, name: str, n_bytes: int) -> Buffer:
        """Scratch memory under a name that all layers share."""
        return self.memory.scratch(f"prompt.{name}", n_bytes)

"""What all launches of a prompt's chunk share: the window block, scratch memory, and how many tokens there can be.

Knows no architecture and no kernel.
"""

from dataclasses import dataclass
from types import MappingProxyType

from engine.backend.cuda.launch import Buffer
from engine.backend.cuda.memory import Memory

# most bytes of shared memory that a block of threads can have
_SHARED_BYTES = MappingProxyType({"sm_80": 163 << 10, "sm_87": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10,
                                  "sm_103": 227 << 10})
_LEAST_SHARED_BYTES = 99 << 10


@dataclass(frozen=True)
class Chunk:
    """Up to `tokens` tokens; how many there are, and at which position, stands in the window block."""

    window: Buffer
    memory: Memory
    tokens: int
    context: int  # cells of a cache

    @property
    def shared_bytes(self) -> int:
        """Most shared memory of a block of threads on this card."""
        return _SHARED_BYTES.get(self.memory.device.arch, _LEAST_SHARED_BYTES)

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

"""A launch as data: which kernel of which program, its grid, and its arguments by name; and memory that has no address yet.

A description of a model is a list of these. It costs no memory on the card, so it can be weighed first.
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType

from engine.errors import Internal

KERNELS = Path(__file__).parent / "kernels"
_STRUCT = re.compile(r"struct (\w+Arguments) \{(.*?)\n\};", re.DOTALL)
_KERNEL = re.compile(r"^KERNEL\((\w+),[^,]+, (\w+)\)", re.MULTILINE)
_CODES = MappingProxyType({"pointer": "Q", "source": "Q", "integer": "q", "real": "d"})


class Buffer:
    """A piece of device memory. `address` is None until it is allocated."""

    def __init__(self, name: str, n_bytes: int) -> None:
        self.name, self.n_bytes = name, n_bytes
        self.address: int | None = None

    def grow(self, n_bytes: int) -> None:
        """Have at least so many bytes."""
        if n_bytes > self.n_bytes and self.address is not None:
            raise Internal(f"{self.name}: asked to grow after it was allocated")
        self.n_bytes = max(self.n_bytes, n_bytes)

    def at(self, offset: int) -> "Place":
        """A place inside, `offset` bytes from the start."""
        return Place(self, offset)


@dataclass(frozen=True)
class Place:
    """Somewhere inside a buffer."""

    buffer: Buffer
    offset: int

    @property
    def address(self) -> int | None:
        """Its address, once the buffer has one."""
        return None if self.buffer.address is None else self.buffer.address + self.offset


Argument = Buffer | Place | int | float | None  # None is a null pointer


@dataclass(frozen=True)
class Launch:
    """One kernel with its arguments. `defines` are what the program is specialised with."""

    program: str
    defines: tuple[tuple[str, str], ...]
    kernel: str
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    arguments: Mapping[str, Argument] = field(hash=False)

    def packed(self) -> bytes:
        """The arguments as the kernel's struct. Raises Internal for a missing, unknown or unallocated one."""
        fields = kernel_fields(self.program).get(self.kernel)
        if fields is None:
            raise Internal(f"{self.program}.cu has no kernel {self.kernel}")
        names = [name for name, _ in fields]
        if set(names) != set(self.arguments):
            wrong = sorted(set(names) ^ set(self.arguments))
            raise Internal(f"{self.program}.{self.kernel}: arguments {wrong} are missing or unknown")
        return struct.pack("<" + "".join(_CODES[kind] for _, kind in fields),
                           *(_value(self, name, kind, self.arguments[name]) for name, kind in fields))


def _value(launch: Launch, name: str, kind: str, value: Argument) -> int | float:
    def wrong(expected: str) -> Internal:
        return Internal(f"{launch.program}.{launch.kernel}: {name} is {expected}")

    if kind in ("pointer", "source"):
        address = value.address if isinstance(value, Buffer | Place) else value or 0
        if address is None:
            raise wrong("not allocated")
        if not isinstance(address, int) or not 0 <= address < 1 << 64:
            raise wrong(f"{address!r}, expected an address")
        return address
    if kind == "real" and isinstance(value, Real):
        return float(value)
    if kind == "integer" and isinstance(value, Integral) and -(1 << 63) <= value < 1 << 63:
        return int(value)
    raise wrong(f"{value!r}, expected a number")


@cache
def kernel_fields(program: str) -> Mapping[str, tuple[tuple[str, str], ...]]:
    """Of each kernel of a program, the fields of its argument struct in order: (name, kind). Kinds: "pointer", "source" (a
    pointer to what is only read), "integer", "real"."""
    source = (KERNELS / f"{program}.cu").read_text()
    structs = {name: _fields(name, re.sub(r"//[^\n]*", "", body)) for name, body in _STRUCT.findall(source)}
    kernels = dict(_KERNEL.findall(source))
    for arguments in kernels.values():
        if arguments not in structs:
            raise Internal(f"{program}.cu: no struct {arguments}")
    return MappingProxyType({kernel: structs[arguments] for kernel, arguments in kernels.items()})


def _fields(struct_name: str, body: str) -> tuple[tuple[str, str], ...]:
    fields = []
    for declaration in filter(None, (part.strip() for part in body.split(";"))):
        if "*" in declaration:
            kind = "source" if declaration.startswith("const ") else "pointer"
            names = re.sub(r"^(const )?\w+", "", declaration)
        else:
            type_name, _, names = declaration.partition(" ")
            kind = {"i64": "integer", "double": "real"}.get(type_name, "")
            if not kind:
                raise Internal(f"{struct_name}: a field of type {type_name!r}; expected pointers, i64 and double")
        fields += [(name.strip(" *"), kind) for name in names.split(",")]
    return tuple(fields)

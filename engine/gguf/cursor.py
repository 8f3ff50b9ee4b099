"""A bounded position in a mapped GGUF file: every read is checked against the bytes left before anything is made.

Owns the error type and the primitive reads (integers, strings). Knows nothing of what the bytes mean. Any thread.
"""

import mmap
import os
import stat
import struct
from pathlib import Path

from engine.errors import BadModel

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SHOWN_CHARS = 80  # of a name from the file, in an error text


class GGUFError(BadModel):
    """A damaged or incomplete GGUF file; the text names the file, the field and the byte offset."""

    def __init__(self, path: Path, what: str, *, field: str | None = None, offset: int | None = None):
        where = [f"field {field}"] if field else []
        where += [f"byte {offset}"] if offset is not None else []
        super().__init__(f"{printable(str(path), 1024)}: {what}" + (f" ({', '.join(where)})" if where else ""))
        self.path = path
        self.field = field
        self.offset = offset


def printable(text: str, limit: int = _SHOWN_CHARS) -> str:
    """A name from outside as one line of bounded length, so that an error stays one line."""
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:limit])
    shown = "".join(escaped)
    return shown + "…" if len(text) > limit else shown


def map_file(path: Path) -> mmap.mmap:
    """Map a whole regular file for reading; anything else (a pipe would block) is an error."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise GGUFError(path, "is not a regular file")
        if status.st_size == 0:
            raise GGUFError(path, "is empty", field="magic", offset=0)
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:  # ValueError: the file shrank to nothing, or a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise GGUFError(path, f"cannot be opened: {reason}") from None


class Cursor:
    """Reads little-endian values from `buffer`, moving `position`; `field` names what is read, for errors."""

    def __init__(self, buffer: mmap.mmap | bytes, path: Path, position: int = 0):
        self.buffer = buffer
        self.path = path
        self.position = position
        self.end = len(buffer)

    def error(self, what: str, field: str, offset: int | None = None) -> GGUFError:
        """An error at `offset`, or at the present position."""
        return GGUFError(self.path, what, field=field, offset=self.position if offset is None else offset)

    def need(self, n_bytes: int, field: str) -> int:
        """Check that `n_bytes` are left, step over them and return where they begin."""
        start, left = self.position, self.end - self.position
        if n_bytes > left:
            raise self.error(f"needs {n_bytes} bytes where {left} are left: truncated or damaged", field)
        self.position = start + n_bytes
        return start

    def u32(self, field: str) -> int:
        return _U32.unpack_from(self.buffer, self.need(4, field))[0]

    def u64(self, field: str) -> int:
        return _U64.unpack_from(self.buffer, self.need(8, field))[0]

    def count(self, field: str, each_bytes: int) -> int:
        """A u64 count of items that take at least `each_bytes` each, so it cannot exceed what is left."""
        start = self.position
        n, left = self.u64(field), self.end - self.position
        if n * each_bytes > left:
            raise self.error(f"{n} items of at least {each_bytes} bytes where {left} bytes are left", field, start)
        return n

    def string(self, field: str, *, longest: int | None = None) -> str:
        """A length-prefixed string; bytes that are not UTF-8 come out as visible escapes such as \\xff."""
        start = self.position
        n = self.u64(field)
        if longest is not None and n > longest:
            raise self.error(f"a string of {n} bytes where at most {longest} are allowed", field, start)
        begin = self.need(n, field)
        return str(self.buffer[begin : begin + n], "utf-8", "backslashreplace")

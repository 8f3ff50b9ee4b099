"""Programs of kernels as shared libraries of the processor: compiled by g++ with cuda_on_cpu.h, kept by a digest of the
sources. Knows sources, options and addresses, no buffers.
"""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from engine.backend.cuda.launch import KERNELS
from engine.backend.cuda.toolchain import cache_folder, sources_digest

_HEADERS = tuple(Path(__file__).with_name(name) for name in ("cuda_on_cpu.h", "machine.h"))
# the checks call functions of machine.h, so nothing of the sanitizers' own library is linked
_COMPILE = ("-std=c++17", "-O2", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-gnu-unique", "-fPIC", "-w",
            "-fsanitize=bounds,alignment", "-DTERRACE_EMULATED")


class KernelFault(Exception):
    """A kernel did something that a card would not define."""


def missing_compiler() -> str | None:
    """Why kernels cannot be compiled here, or None."""
    return None if shutil.which("g++") else "g++ is not installed: kernels cannot be run on the processor"


class Program:
    """A loaded program."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.on_cpu_report.restype = ctypes.c_char_p
        self._library.on_cpu_fault_address.restype = ctypes.c_uint64

    def run(self, kernel: str, grid: tuple[int, int, int], threads: int, shared_bytes: int, arguments: bytes, *,
            seed: int = 0, dependent: bool = False,
            closed: Sequence[tuple[int, int, int]] = ()) -> tuple[str, int] | None:
        """Run a kernel; what is wrong with it and the address where that was seen (0 where there is none), or None.

        seed: blocks, warps and lanes run as they are counted (0), backwards (1) or shuffled. dependent: the kernel must await
        the one before; until then pages are `closed`: (first address, bytes, what mprotect shall allow).
        """
        pages = [value for entry in closed for value in entry]
        if not getattr(self._library, kernel)((ctypes.c_uint32 * 3)(*grid), threads, shared_bytes,
                                              ctypes.create_string_buffer(arguments, len(arguments)), seed, int(dependent),
                                              (ctypes.c_uint64 * len(pages))(*pages), len(closed)):
            return None
        return self._library.on_cpu_report().decode(), self._library.on_cpu_fault_address()


@cache
def load(program: str, defines: tuple[tuple[str, str], ...], folder: Path = KERNELS) -> Program:
    """A program of a folder of sources, specialised. Raises KernelFault with the compiler's words if it does not compile."""
    texts = (sources_digest(program, folder), *(header.read_text() for header in _HEADERS))
    described = "\0".join((program, repr(defines), *texts, *_COMPILE))
    kept = cache_folder() / f"{program}-{hashlib.sha256(described.encode()).hexdigest()[:32]}.so"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        wanted = [f"-D{key}={value}" for key, value in defines]
        with tempfile.TemporaryDirectory(dir=kept.parent) as room:
            _gpp(program, defines, *_COMPILE, *wanted, f"-I{folder}", f"-I{KERNELS}", f"-I{_HEADERS[0].parent}", "-x", "c++",
                 "-c", str(folder / f"{program}.cu"), "-o", f"{room}/program.o")
            _gpp(program, defines, "-shared", f"{room}/program.o", "-o", f"{room}/program.so")
            Path(room, "program.so").replace(kept)
    return Program(kept)


def _gpp(program: str, defines: tuple[tuple[str, str], ...], *options: str) -> None:
    done = subprocess.run(["g++", *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise KernelFault(f"{program}.cu with {dict(defines)} does not compile:\n{done.stderr[:4000]}")

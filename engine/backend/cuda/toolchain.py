"""From kernel sources to machine code: NVRTC, with the results kept on disk.

Knows files, options and architectures, no device. A result is found again by a digest of the sources, the options and
the compiler's version.
"""

import hashlib
import os
import re
import tempfile
from pathlib import Path

from engine.backend.cuda.launch import KERNELS
from engine.errors import Internal

_OPTIONS = ("--std=c++17", "--device-as-default-execution-space", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def cache_folder() -> Path:
    """Where compiled kernels are kept."""
    home = os.environ.get("TERRACE_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "terrace") / "kernels" / "cuda"


def sources_digest(program: str, folder: Path = KERNELS) -> str:
    """A digest of a program's source in a folder and of everything that it includes, from there or from our kernels."""
    total, seen, waiting = hashlib.sha256(), set(), [f"{program}.cu"]
    while waiting:
        name = waiting.pop()
        path = next((place / name for place in (folder, KERNELS) if (place / name).exists()), None)
        if name not in seen and path is not None:
            seen.add(name)
            text = path.read_text()
            total.update(f"{name}\0{text}\0".encode())
            waiting += _INCLUDE.findall(text)
    return total.hexdigest()


def compile_cubin(program: str, defines: tuple[tuple[str, str], ...], arch: str) -> bytes:
    """Machine code of one program for an architecture such as "sm_90". Raises Internal with the compiler's log."""
    from cuda.bindings import nvrtc

    options = [*_OPTIONS, f"--gpu-architecture={arch}", f"--include-path={KERNELS}"]
    options += [f"-D{name}={value}" for name, value in defines]
    version = _checked(nvrtc, *nvrtc.nvrtcVersion())
    described = "\0".join([program, *options[:-1 - len(defines)], *map(repr, defines), repr(version), sources_digest(program)])
    kept = cache_folder() / f"{program}-{hashlib.sha256(described.encode()).hexdigest()[:32]}.cubin"
    if kept.exists():
        return kept.read_bytes()
    source = (KERNELS / f"{program}.cu").read_bytes()
    handle, = _checked(nvrtc, *nvrtc.nvrtcCreateProgram(source, f"{program}.cu".encode(), 0, [], []))
    try:
        status, = nvrtc.nvrtcCompileProgram(handle, len(options), [option.encode() for option in options])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            size, = _checked(nvrtc, *nvrtc.nvrtcGetProgramLogSize(handle))
            log = b" " * size
            nvrtc.nvrtcGetProgramLog(handle, log)
            words = log.rstrip(b"\0").decode(errors="replace")
            raise Internal(f"{program}.cu with {dict(defines)} does not compile for {arch}: {words}")
        size, = _checked(nvrtc, *nvrtc.nvrtcGetCUBINSize(handle))
        cubin = b" " * size
        _checked(nvrtc, *nvrtc.nvrtcGetCUBIN(handle, cubin))
    finally:
        nvrtc.nvrtcDestroyProgram(handle)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as partial:
        partial.write(cubin)
    Path(partial.name).replace(kept)
    return cubin


def _checked(nvrtc, status, *values):
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise Internal(f"NVRTC: {status.name}")
    return values

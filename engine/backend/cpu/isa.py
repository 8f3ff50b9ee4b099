"""Which instruction set the CPU kernels are generated for, and where their machine code is cached.

Must run before numba is imported: numba reads its cache folder once. The tiers are `vnni` (AVX-512 VNNI), `avx2` and
`plain` (no vector intrinsics of any vendor). All three give the same bits; TERRACE_ISA picks a lower one for tests.
"""

import hashlib
import os
from functools import cache
from pathlib import Path

import llvmlite.binding

TIERS = ("plain", "avx2", "vnni")  # ascending
_NEEDS = {
    "plain": (),
    "avx2": ("avx2", "f16c"),
    "vnni": ("avx2", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"),
}


@cache
def host_tier() -> str:
    """The highest tier that this machine runs."""
    features = llvmlite.binding.get_host_cpu_features()
    return [tier for tier in TIERS if all(features.get(name, False) for name in _NEEDS[tier])][-1]


@cache
def tier() -> str:
    """The tier in use: the host's, or a lower one named by TERRACE_ISA.

    Raises ValueError for a name that is no tier, and for one that this machine cannot run.
    """
    wanted = os.environ.get("TERRACE_ISA", host_tier())
    if wanted not in TIERS:
        raise ValueError(f"TERRACE_ISA={wanted}: expected one of {', '.join(TIERS)}")
    if TIERS.index(wanted) > TIERS.index(host_tier()):
        raise ValueError(f"TERRACE_ISA={wanted}: this machine runs at most {host_tier()}")
    return wanted


def prepare_numba() -> None:
    """Point numba's cache at a folder keyed by the kernel sources and the tier.

    numba checks only the file a function stands in, so an intrinsic or a constant that changed elsewhere would be
    missed; and a clone has new file times, which would recompile everything once more.
    """
    digest = hashlib.sha256(tier().encode())
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(source.name.encode() + source.read_bytes())
    root = Path(os.environ.get("TERRACE_HOME", Path.home() / ".cache" / "terrace"))
    # set over an inherited one: it may be a parent's, for another tier
    os.environ["NUMBA_CACHE_DIR"] = str(root / "kernels" / digest.hexdigest()[:16])

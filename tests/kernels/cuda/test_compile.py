"""The programs that the backend launches are compiled for the architectures of cards, without one."""

import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from engine.backend.cuda.launch import KERNELS, kernel_fields
from engine.backend.cuda.layouts import LAYOUTS
from engine.backend.cuda.toolchain import compile_cubin
from engine.errors import Internal
from tests.kernels.cuda.conftest import THOROUGH
from tests.kernels.cuda.recording import Program, programs_of, write_hollow_mixture
from tests.kernels.cuda.test_models import MODELS
from tools.make_tiny_gguf import write_tiny

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed: kernels cannot be compiled")
ARCHITECTURES = ("sm_80", "sm_90", "sm_120")
PROMPT_ONLY = {"flash": {"low_rank", "mix_streams"}}  # for prompts of qwen4exp, whose other blocks have no form for them yet
EVERYWHERE = ("Q8_0", "Q4_K")  # of the other formats each is compiled for one architecture, when there is time


def formats_for(arch: str) -> list[str]:
    if not THOROUGH:
        return [*EVERYWHERE] if arch == "sm_90" else ["Q4_K"]
    others = [name for name in LAYOUTS if name not in EVERYWHERE]
    return [*EVERYWHERE, *others[ARCHITECTURES.index(arch)::len(ARCHITECTURES)]]


def ends(programs: Iterable[Program]) -> list[Program]:
    """Of the programs that differ only in numbers, the first and the last."""
    groups: dict[tuple, list[Program]] = {}
    for name, defines in programs:
        alike = name, tuple((key, None if value.isdigit() else value) for key, value in defines)
        groups.setdefault(alike, []).append((name, defines))
    found = [sorted(group, key=lambda program: [int(v) for _, v in program[1] if v.isdigit()]) for group in groups.values()]
    return [program for group in found for program in dict.fromkeys((group[0], group[-1]))]


@cache
def programs(arch: str, folder: Path) -> dict[Program, set[str]]:
    """What models of all formats and architectures load on such a card, and which kernels of it."""
    paths = [write_hollow_mixture(folder / f"{name}.gguf", name) for name in formats_for(arch)]
    names = MODELS if THOROUGH else ("qwen4exp", "llama", "olmoe")
    paths += [write_tiny(folder / f"{name}.gguf", **MODELS[name])[0] for name in names]
    found: dict[Program, set[str]] = {}
    for path in paths:
        for program, kernels in programs_of(path, arch).items():
            found.setdefault(program, set()).update(kernels)
        path.unlink()
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def complaint(name: str, defines: tuple[tuple[str, str], ...], arch: str) -> str | None:
    try:
        compile_cubin(name, defines, arch)
    except Internal as error:
        return str(error)
    return None


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_programs_compile(arch, folder):
    wanted = ends(programs(arch, folder))
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(complaint, *program, arch) for program in wanted]
        complaints = [task.result() for task in waiting]
    assert not [words for words in complaints if words]


def test_every_kernel_is_used(folder):
    used: dict[str, set[str]] = {}
    for (name, _), kernels in programs("sm_90", folder).items():
        used.setdefault(name, set()).update(kernels)
    unused = {path.stem: set(kernel_fields(path.stem)) - used.get(path.stem, set()) for path in KERNELS.glob("*.cu")}
    assert {name: kernels for name, kernels in unused.items() if kernels} == PROMPT_ONLY


def test_a_program_that_does_not_compile_says_why():
    with pytest.raises(Internal, match=r"(?s)matvec.cu .*no_such_format.* for sm_90: .*error.*no_such_format"):
        compile_cubin("matvec", (("FORMATS", "1"), ("FORMAT0", "no_such_format")), "sm_90")


def test_a_result_is_kept_by_options_and_architecture(tmp_path, monkeypatch):
    monkeypatch.setenv("TERRACE_HOME", str(tmp_path))
    for _ in range(2):
        for defines, arch in (((), "sm_80"), ((), "sm_90"), ((("NOTHING", "1"),), "sm_90")):
            assert compile_cubin("rows", defines, arch).startswith(b"\x7fELF")
    assert len([*(tmp_path / "kernels" / "cuda").iterdir()]) == 3

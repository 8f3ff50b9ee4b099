"""The order of imports, module sizes, and that every module can be imported on its own."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("engine", "gateway", "packs", "tools")
# lowest first; a module may import from its own layer and from those above it in this list
LAYERS = (
    ("engine.errors", "engine.protocol", "engine.messages"), ("engine.gguf",), ("engine.backend",),
    ("engine.state", "engine.tiers"), ("engine.model",), ("engine.draft", "engine.sampling"),
    ("engine.config", "engine.session"), ("engine.generate", "engine.stats"),
    ("engine.stdio", "engine.watchdog", "engine.daemon"), ("engine.__main__",))
FROM_THE_ENGINE = ("engine.protocol", "engine.errors", "engine.gguf", "engine.messages")  # what the gateway may know
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, *, inside_functions: bool = True) -> list[tuple[str, int]]:
    """(module, line) of every import that runs; those for type checkers only do not count."""
    tree = ast.parse(path.read_text())
    skipped = {id(child) for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
               for child in ast.walk(node)}
    if not inside_functions:
        skipped |= {id(child) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                    for child in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                is_module = (ROOT / Path(*whole.split("."))).with_suffix(".py").exists()
                found.append((whole if is_module else node.module, node.lineno))
    return found


def layer_of(module: str) -> int | None:
    for i, prefixes in enumerate(LAYERS):
        if any(module == prefix or module.startswith(prefix + ".") for prefix in prefixes):
            return i
    return None


def test_engine_imports_go_one_way():
    wrong = []
    for path in MODULES:
        own = layer_of(name_of(path))
        for module, line in imports(path):
            other = layer_of(module)
            if own is not None and other is not None and other > own:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong


def test_every_engine_module_has_a_layer():
    missing = [name_of(path) for path in (ROOT / "engine").rglob("*.py")
               if path.parent != ROOT / "engine" or path.name != "__init__.py" if layer_of(name_of(path)) is None]
    assert not missing


def test_packages_know_only_what_they_may():
    wrong = []
    for path in MODULES:
        package = name_of(path).split(".")[0]
        for module, line in imports(path):
            top = module.split(".")[0]
            allowed = {
                "engine": top != "gateway" and top != "tools",
                "gateway": top not in ("engine", "tools") or any(
                    module == name or module.startswith(name + ".") for name in FROM_THE_ENGINE),
                "packs": top not in ("gateway", "tools"),
                "tools": True}[package]
            if top in PACKAGES and not allowed:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong


def test_apis_do_not_import_each_other():
    wrong = []
    for path in (ROOT / "gateway" / "apis").rglob("*.py"):
        own = name_of(path).split(".")[2:3]
        for module, line in imports(path):
            if module.startswith("gateway.apis.") and module.split(".")[2:3] != own:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong


def test_cupy_is_imported_only_inside_functions():
    wrong = [f"{path.relative_to(ROOT)}:{line}" for path in MODULES
             for module, line in imports(path, inside_functions=False) if module.split(".")[0] == "cupy"]
    assert not wrong


def test_no_module_is_longer_than_500_lines():
    long = {name_of(path): n for path in MODULES if (n := len(path.read_text().splitlines())) > 500}
    assert not long


def run_python(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})



@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_imports_alone(package):
    """Each in an interpreter of its own, without a warning; forked from one that has only the heavy libraries."""
    names = [name_of(path) for path in (ROOT / package).rglob("*.py") if path.name != "__main__.py"]
    code = (
        "import importlib, os, sys, traceback\n"
        "import numpy, numba, aiohttp, msgspec, jinja2, tokenizers, gguf\n"
        f"for name in {names!r}:\n"
        "    if (child := os.fork()) == 0:\n"
        "        try:\n"
        "            importlib.import_module(name)\n"
        "        except ModuleNotFoundError as error:\n"
        "            if error.name.split('.')[0] not in ('torch', 'transformers'):\n"
        "                traceback.print_exc(); os._exit(1)\n"
        "        except BaseException:\n"
        "            traceback.print_exc(); os._exit(1)\n"
        "        os._exit(0)\n"
        "    if os.waitpid(child, 0)[1]:\n"
        "        sys.exit(name)\n")
    done = subprocess.run([sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning:multiprocessing", "-c", code],
                          cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr


def test_gateway_imports_without_numba_and_cupy():
    names = [name_of(path) for path in (ROOT / "gateway").rglob("*.py") if path.name != "__main__.py"]
    code = ("import sys\n"
            "sys.modules['numba'] = sys.modules['cupy'] = sys.modules['llvmlite'] = None\n"
            f"for name in {names!r}: __import__(name)\n")
    done = run_python(code)
    assert done.returncode == 0, done.stderr

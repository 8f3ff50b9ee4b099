"""Where a model comes from: a GGUF file, or a pack directory with a manifest.json, or the embedded pack.

Owns the manifest's form and the places of packs. Never fetches or builds anything and never opens a GGUF
file. Engine and gateway both use it, at start, on the main thread.
"""

import os
import re
from pathlib import Path

import msgspec

from engine.errors import BadModel

MANIFEST = "manifest.json"
_SHARD_SUFFIX = re.compile(r"-\d{5}-of-\d{5}$")


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """manifest.json of a pack; file names are relative to the pack's directory."""

    format: int = 1
    name: str
    model: str  # GGUF file, the first shard of a split set
    ple: str | None = None  # GGUF file with the PLE table, where it is kept apart
    family: str | None = None  # conventions of the model family: a file of packs/families
    licence: str | None = None
    source: str | None = None  # where the weights came from, for people
    stop_tokens: tuple[str, ...] = ()  # texts of tokens that end a turn beside those the GGUF names
    sampling: dict[str, float] = {}  # what the gateway fills in when a client leaves it out


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """The files and conventions of one model, ready to open."""

    model: Path
    ple: Path | None = None
    family: str | None = None
    name: str
    sampling: dict[str, float] = {}
    directory: Path | None = None  # of the pack; None for a bare GGUF
    stop_tokens: tuple[str, ...] = ()


def home() -> Path:
    """Where terrace keeps its files: $TERRACE_HOME, or ~/.cache/terrace."""
    chosen = os.environ.get("TERRACE_HOME")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "terrace"


def default_pack() -> Path:
    """The directory of the pack that is used when no model is named: the one that comes with the source."""
    return Path(__file__).parent / "tiny"


def fetched_pack() -> Path:
    """The directory of the pack that `python -m packs.default` makes; it may not be there."""
    return home() / "packs" / "default"


def resolve_model(path: Path | None) -> ModelSource:
    """What to open for `path`: a GGUF file, a pack directory, or None for the default pack."""
    if path is None:
        path = default_pack()
        if not (path / MANIFEST).is_file():
            way = "give --model; `python -m packs.default` fetches one"
            raise BadModel(f"no model was named and the embedded pack is not at {path}: {way}")
    if path.is_dir():
        return _resolve_pack(path)
    if not path.is_file():
        raise BadModel(f"there is no model at {path}")
    return ModelSource(model=path, name=_SHARD_SUFFIX.sub("", path.stem))


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a pack directory."""
    file = directory / MANIFEST
    try:
        manifest = msgspec.json.decode(file.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise BadModel(f"{directory} is a directory without {MANIFEST}: neither a pack nor a GGUF file") from None
    except (OSError, msgspec.DecodeError) as error:
        raise BadModel(f"{file} cannot be read: {str(error).splitlines()[0]}") from None
    if manifest.format != 1:
        raise BadModel(f"{file} has format {manifest.format}; this version reads format 1")
    return manifest


def _resolve_pack(directory: Path) -> ModelSource:
    manifest = read_manifest(directory)
    files = [directory / name for name in (manifest.model, manifest.ple) if name is not None]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise BadModel(f"{directory / MANIFEST} names {missing[0].name}, which is not there")
    return ModelSource(
        model=files[0],
        ple=files[1] if manifest.ple is not None else None,
        family=manifest.family,
        name=manifest.name,
        sampling=manifest.sampling,
        directory=directory,
        stop_tokens=manifest.stop_tokens,
    )

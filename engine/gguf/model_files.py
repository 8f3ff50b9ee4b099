"""All files of one model: the shards of a split set and a PLE table kept apart, mapped read-only, tensors by name.

Checks that the set is complete, that every tensor lies inside its file and that no two overlap or share a name. Does
not know what the tensors are for. The maps live until `close` or until the last array that views them goes. Any thread.
"""

import mmap
import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from engine.errors import BadModel
from engine.gguf.cursor import GGUFError, map_file, printable
from engine.gguf.formats import BlockFormat, format_of
from engine.gguf.reader import ArrayStub, Header, Metadata, TensorInfo, read_array, read_header, read_tensor_table

PLE_TABLE = "per_layer_token_embd.weight"
_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MOST_SHARDS = 9999


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor where it lies: `data` views the mapped file, uint8 [*shape[:-1], row bytes]."""

    name: str
    shape: tuple[int, ...]  # numpy order, rows first
    format: BlockFormat
    n_bytes: int
    shard: int  # index into ModelFiles.paths
    offset: int  # of the first byte in that file
    data: np.ndarray  # uint8 [*shape[:-1], row_bytes]
    scale: "Tensor | None" = None  # of a matrix: its products are multiplied by this one value, or by one an expert


class ModelFiles:
    """The open files of one model. Use as a context manager, or call `close`."""

    def __init__(self, shards: list["_Shard"], tensors: dict[str, Tensor]):
        self.metadata = shards[0].header.metadata
        self.paths = tuple(shard.path for shard in shards)
        self.tensors = tensors
        self._maps = [shard.buffer for shard in shards]

    def array(self, key: str, default: list[Any] | None = None) -> list[Any]:
        """An array of the first shard's metadata, decoded now if it was not; `default` if the key is absent."""
        value = self.metadata.get(key, default)
        if isinstance(value, ArrayStub):
            return read_array(self._maps[0], self.paths[0], key, value)
        if value is None:
            raise GGUFError(self.paths[0], "the metadata lacks this key", field=key)
        if not isinstance(value, list):
            raise GGUFError(self.paths[0], f"should be an array, is {type(value).__name__}", field=key)
        return value

    def close(self) -> None:
        """Forget the tensors and unmap; a file whose tensor data is still held elsewhere stays mapped until let go."""
        self.tensors = {}
        for buffer in self._maps:
            with suppress(BufferError):
                buffer.close()
        self._maps = []

    def __enter__(self) -> "ModelFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Shard:
    path: Path
    buffer: mmap.mmap
    header: Header
    tensors: list[TensorInfo]
    data_offset: int


def open_model(path: str | Path, ple_path: str | Path | None = None) -> ModelFiles:
    """Open a model by its only file or its first shard. `ple_path` names a file whose PLE table is to be used."""
    path = Path(path)
    shards = [_open_shard(path)]
    try:
        for number, sibling in enumerate(_siblings(shards[0]), 2):
            shards.append(_open_shard(sibling))
            _check_sibling(shards, number)
        _check_tensor_count(shards)
        tensors: dict[str, Tensor] = {}
        for index, shard in enumerate(shards):
            for tensor in _locate(shard, index):
                if tensor.name in tensors:
                    what = f"is in {printable(shards[tensors[tensor.name].shard].path.name)} too"
                    raise GGUFError(shard.path, what, field=f"tensor {printable(tensor.name)}")
                tensors[tensor.name] = tensor
        if ple_path is not None and not any(_same_file(Path(ple_path), shard.path) for shard in shards):
            shards.append(_open_shard(Path(ple_path)))
            tensors[PLE_TABLE] = _ple_table(shards[-1], len(shards) - 1)
        elif ple_path is not None and PLE_TABLE not in tensors:
            raise GGUFError(Path(ple_path), "has no such tensor", field=f"tensor {PLE_TABLE}")
        return ModelFiles(shards, tensors)
    except BaseException:
        tensors = {}  # views would keep the maps open
        for shard in shards:
            with suppress(BufferError):
                shard.buffer.close()
        raise


def _open_shard(path: Path) -> _Shard:
    buffer = map_file(path)
    try:
        header = read_header(buffer, path)
        infos, data_offset = read_tensor_table(buffer, path, header)
        return _Shard(path, buffer, header, infos, data_offset)
    except BaseException:
        buffer.close()
        raise


def _split_key(metadata: Metadata, key: str, default: int) -> int:
    return metadata.need(key, int) if key in metadata else default


def _siblings(first: _Shard) -> list[Path]:
    """The paths of shards 2 … N of the set that `first` opens."""
    path, metadata = first.path, first.header.metadata
    count, index = _split_key(metadata, "split.count", 1), _split_key(metadata, "split.no", 0)
    name = _SHARD_NAME.fullmatch(path.name)
    named_count, named_number = (int(name["count"]), int(name["number"])) if name else (1, 1)
    if not 0 <= count <= _MOST_SHARDS:
        raise GGUFError(path, f"a set of {count} files", field="split.count")
    count = max(count, 1)  # 0 is written by some tools for "not split"
    if name and (named_count, named_number) != (count, index + 1):
        what = f"its name says shard {named_number} of {named_count}, its metadata shard {index + 1} of {count}"
        raise GGUFError(path, what, field="split.count")
    if count == 1:
        return []
    if not name:
        what = f"is shard {index + 1} of {count}, but is not named …-{index + 1:05d}-of-{count:05d}.gguf"
        raise GGUFError(path, f"{what}, so the others cannot be found", field="split.count")
    paths = [path.with_name(f"{name['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    if index:
        what = f"is shard {index + 1} of {count}; give the first one, {printable(paths[0].name)}"
        raise GGUFError(path, what, field="split.no")
    missing = [p for p in paths[1:] if not p.exists()]
    if missing:
        names = ", ".join(printable(p.name) for p in missing[:4]) + (", …" if len(missing) > 4 else "")
        raise GGUFError(path, f"{len(missing)} of {count} shards are missing: {names}", field="split.count")
    return paths[1:]


def _check_sibling(shards: list[_Shard], number: int) -> None:
    metadata = shards[-1].header.metadata
    count = _split_key(shards[0].header.metadata, "split.count", 1)
    found = _split_key(metadata, "split.no", 0) + 1, _split_key(metadata, "split.count", 1)
    if found != (number, count):
        what = f"should be shard {number} of {count}, says it is {found[0]} of {found[1]}"
        raise GGUFError(shards[-1].path, what, field="split.no")


def _check_tensor_count(shards: list[_Shard]) -> None:
    found = sum(shard.header.n_tensors for shard in shards)
    declared = _split_key(shards[0].header.metadata, "split.tensors.count", found)
    if declared != found:
        what = f"declares {declared} tensors, the {len(shards)} files of the set hold {found}"
        raise GGUFError(shards[0].path, what, field="split.tensors.count")


def _locate(shard: _Shard, index: int) -> list[Tensor]:
    """Tensors of one file, each checked to lie inside it and apart from the others."""
    size = len(shard.buffer)
    whole = np.frombuffer(shard.buffer, np.uint8)  # [file bytes]
    tensors = []
    for info in shard.tensors:
        field, shape = f"tensor {printable(info.name)}", info.dimensions[::-1]
        try:
            kind = format_of(info.type_id)
            row_bytes = kind.row_bytes(shape[-1])
        except BadModel as error:
            raise GGUFError(shard.path, str(error), field=field, offset=info.offset) from None
        n_bytes, offset = prod(shape[:-1]) * row_bytes, shard.data_offset + info.data_offset
        if offset + n_bytes > size:
            missing = offset + n_bytes - size
            what = f"its {n_bytes} bytes begin at byte {offset}, the file ends at {size}: {missing} bytes are missing"
            raise GGUFError(shard.path, what, field=field, offset=info.offset)
        data = whole[offset : offset + n_bytes].reshape(*shape[:-1], row_bytes)
        tensors.append(Tensor(info.name, shape, kind, n_bytes, index, offset, data))
    for before, after in pairwise(sorted(tensors, key=lambda tensor: tensor.offset)):
        if before.offset + before.n_bytes > after.offset:
            field = f"tensor {printable(after.name)}"
            raise GGUFError(shard.path, f"overlaps {printable(before.name)}", field=field, offset=after.offset)
    return tensors


def _ple_table(shard: _Shard, index: int) -> Tensor:
    for tensor in _locate(shard, index):
        if tensor.name == PLE_TABLE:
            return tensor
    raise GGUFError(shard.path, "has no such tensor", field=f"tensor {PLE_TABLE}")


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False  # opening it will say why

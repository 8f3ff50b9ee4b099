"""What the backend will hold on the card, weighed before anything is allocated: buffers, weights, and the sequence's state.

Owns the allocations; one thread. A buffer has no address until `allocate`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from engine.backend.cuda.device import Device
from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.layouts import FLOAT_BYTES, LAYOUTS, tensor_bytes
from engine.errors import BadModel
from engine.gguf import Tensor

_STAGING_BYTES = 64 << 20


@dataclass(frozen=True)
class Weight:
    """A tensor on the card: [matrices, rows, columns] in its format's planes, or rows of floats."""

    tensor: Tensor
    buffer: Buffer

    @property
    def format(self) -> str:
        """The block format's name."""
        return self.tensor.format.name

    @property
    def is_float(self) -> bool:
        """Whether elements are plain floats."""
        return self.format in FLOAT_BYTES

    @property
    def rows(self) -> int:
        """Rows of one matrix."""
        return self.tensor.shape[-2]

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return self.tensor.shape[-1]

    @property
    def matrix_bytes(self) -> int:
        """From one matrix to the next."""
        return tensor_bytes(self.format, (self.rows, self.columns))


class Memory:
    """All buffers of a model on one card."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._buffers: list[Buffer] = []
        self._weights: dict[str, Weight] = {}
        self._arrays: list[tuple[Buffer, np.ndarray]] = []
        self._vectors: dict[str, Buffer] = {}
        self._named: dict[str, Buffer] = {}
        self._allocated: list[int] = []

    @property
    def n_bytes(self) -> int:
        """Everything that `allocate` takes."""
        return sum(buffer.n_bytes for buffer in self._buffers) + _STAGING_BYTES

    @property
    def weight_bytes(self) -> int:
        """What of it are weights."""
        return sum(weight.buffer.n_bytes for weight in self._weights.values())

    def buffer(self, name: str, n_bytes: int) -> Buffer:
        """New memory, zeroed."""
        self._buffers.append(Buffer(name, max(n_bytes, 16)))
        return self._buffers[-1]

    def scratch(self, name: str, n_bytes: int) -> Buffer:
        """Memory that all layers share under a name, as large as the largest of them needs."""
        held = self._named.get(name)
        if held is None:
            held = self._named[name] = self.buffer(name, n_bytes)
        held.grow(n_bytes)
        return held

    def array(self, name: str, values: np.ndarray) -> Buffer:
        """Memory that holds these values from the start."""
        buffer = self.buffer(name, values.nbytes)
        self._arrays.append((buffer, np.ascontiguousarray(values)))
        return buffer

    def vector(self, tensor: Tensor) -> Buffer:
        """A small float tensor as f32."""
        if tensor.name not in self._vectors:
            self._vectors[tensor.name] = self.array(tensor.name, float_values(tensor))
        return self._vectors[tensor.name]

    def weight(self, tensor: Tensor) -> Weight:
        """A tensor of weights in the form that the kernels read."""
        if tensor.format.name not in LAYOUTS and tensor.format.name not in FLOAT_BYTES:
            raise BadModel(f"{tensor.name}: the format {tensor.format.name} has no kernel on CUDA")
        if tensor.name not in self._weights:
            n_bytes = tensor_bytes(tensor.format.name, tensor.shape)
            self._weights[tensor.name] = Weight(tensor, self.buffer(tensor.name, n_bytes))
        return self._weights[tensor.name]

    def allocate(self) -> None:
        """Take the memory and fill what has values. Raises OutOfMemory; what was taken until then is for `free`."""
        for buffer in self._buffers:
            buffer.address = self.device.allocate(buffer.n_bytes)
            self._allocated.append(buffer.address)
        for buffer, values in self._arrays:
            self.device.upload(buffer.address, values)
        staging = self.device.allocate(_STAGING_BYTES)
        try:
            for weight in self._weights.values():
                self._upload(weight, staging)
            self.device.synchronize()
        finally:
            self.device.free(staging)
        self._arrays.clear()

    def _upload(self, weight: Weight, staging: int) -> None:
        if weight.is_float:
            self.device.upload(weight.buffer.address, weight.tensor.data)
            return
        for launch, data in _repacks(weight, staging):
            self.device.upload(staging, data)
            self.device.run(launch)
            self.device.synchronize()  # before the staging area is written again

    def free(self) -> None:
        """Give everything back."""
        for address in self._allocated:
            self.device.free(address)
        self._allocated.clear()
        for buffer in self._buffers:
            buffer.address = None


def _repacks(weight: Weight, staging: int) -> Iterator[tuple[Launch, np.ndarray]]:
    """The launches that turn a tensor's file bytes into planes, each with the bytes it reads at `staging`."""
    data = weight.tensor.data.reshape(-1, weight.rows, weight.tensor.data.shape[-1])  # u8 [matrices, rows, row bytes]
    row_bytes = data.shape[-1]
    rows_at_once = min(max(_STAGING_BYTES // row_bytes, 1), weight.rows)
    matrices_at_once = max(_STAGING_BYTES // (row_bytes * weight.rows), 1)
    chunks = -(-weight.columns // 64)
    for first in range(0, len(data), matrices_at_once):
        matrices = min(matrices_at_once, len(data) - first)
        for row in range(0, weight.rows, rows_at_once):
            rows = min(rows_at_once, weight.rows - row)
            yield Launch(
                "repack", (("FORMAT", weight.format), (f"SOURCE_{weight.format}", "1")), "repack",
                (-(-rows * chunks // 128), matrices, 1), 128, 0,
                {"blocks": staging, "row_bytes": row_bytes, "rows": rows, "first_row": row, "matrix_rows": weight.rows,
                 "columns": weight.columns, "matrix_bytes": weight.matrix_bytes,
                 "out": weight.buffer.at(first * weight.matrix_bytes)}), data[first:first + matrices, row:row + rows]


def float_values(tensor: Tensor) -> np.ndarray:
    """A tensor of floats as f32 of its shape."""
    name = tensor.format.name
    if name == "F32":
        values = tensor.data.view("<f4")
    elif name == "F16":
        values = tensor.data.view("<f2").astype(np.float32)
    elif name == "BF16":
        values = (tensor.data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        raise BadModel(f"{tensor.name}: expected plain floats, found {name}")
    return np.ascontiguousarray(values).reshape(tensor.shape)


class DeviceArray:
    """State in device memory, with what `state.sequence` asks of an array: size, copy, fill with zeros, assignment."""

    def __init__(self, device: Device, buffer: Buffer, shape: tuple[int, ...], dtype: type) -> None:
        self.device, self.buffer, self.shape, self.dtype = device, buffer, shape, np.dtype(dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return prod(self.shape) * self.dtype.itemsize

    def copy(self) -> np.ndarray:
        """Its values, in the host's memory."""
        values = np.empty(self.shape, self.dtype)
        self.device.download(self.buffer.address, values)
        return values

    def fill(self, value: int) -> None:
        """All zeros."""
        if value != 0:
            raise ValueError("only zero can be filled in")
        self.device.fill_zero(self.buffer.address, self.nbytes)

    def __setitem__(self, key: object, values: np.ndarray) -> None:
        if key is not Ellipsis:
            raise IndexError("only the whole array can be assigned")
        self.device.upload(self.buffer.address, np.ascontiguousarray(values, self.dtype))

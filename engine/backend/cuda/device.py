"""One card: memory, kernels, launches, graphs, and one stream for all of it.

Every call's status is checked. Owns the context and what is loaded into it; used from one thread. `Device` is what the
backend asks for: the tests have another one that computes on the processor.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
from cuda.bindings import driver

from engine.backend.cuda.launch import Launch
from engine.backend.cuda.toolchain import compile_cubin
from engine.errors import Internal, OutOfMemory

_SPIN_S = 0.002  # a wait spins so long before it sleeps between looks
_MOST_WAIT_S = 30.0


@dataclass(frozen=True)
class Pinned:
    """An array of the host that the card reads and writes too."""

    array: np.ndarray
    address: int


class Device(Protocol):
    """What the backend asks of a card."""

    name: str
    arch: str
    sm_count: int

    def free_bytes(self) -> int: ...
    def allocate(self, n_bytes: int) -> int: ...
    def free(self, address: int) -> None: ...
    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Pinned: ...
    def upload(self, address: int, values: np.ndarray) -> None: ...
    def download(self, address: int, values: np.ndarray) -> None: ...
    def fill_zero(self, address: int, n_bytes: int) -> None: ...
    def load_launch(self, launch: Launch) -> Any: ...
    def run(self, launch: Launch, *, handle: Any = None, dependent: bool = False) -> None: ...
    def begin_capture(self) -> None: ...
    def end_capture(self) -> Any: ...
    def launch_graph(self, graph: Any) -> None: ...
    def wait_for(self, condition: Callable[[], bool]) -> None: ...
    def synchronize(self) -> None: ...


def _checked(status: Any, *values: Any) -> Any:
    """The values of a driver call, or an error with its name."""
    if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise OutOfMemory("the card has no more memory")
    if status != driver.CUresult.CUDA_SUCCESS:
        raise Internal(f"CUDA: {status.name}")
    return values[0] if len(values) == 1 else values


class GpuDevice:
    """A card through the driver."""

    def __init__(self, ordinal: int = 0) -> None:
        _checked(*driver.cuInit(0))
        self._device = _checked(*driver.cuDeviceGet(ordinal))
        self._context = _checked(*driver.cuDevicePrimaryCtxRetain(self._device))
        _checked(*driver.cuCtxSetCurrent(self._context))
        self._stream = _checked(*driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        kinds = driver.CUdevice_attribute
        major, minor, self.sm_count = (_checked(*driver.cuDeviceGetAttribute(kind, self._device)) for kind in (
            kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            kinds.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT))
        self.arch = f"sm_{major}{minor}"
        self.name = _checked(*driver.cuDeviceGetName(128, self._device)).split(b"\0")[0].decode()
        self._can_depend = major >= 9
        self._modules: dict[tuple, Any] = {}
        self._functions: dict[tuple, Any] = {}

    # --- memory ---------------------------------------------------------------------------------------------------
    def free_bytes(self) -> int:
        """Memory of the card that nobody holds."""
        return _checked(*driver.cuMemGetInfo())[0]

    def allocate(self, n_bytes: int) -> int:
        """The address of new memory, zeroed. Raises OutOfMemory."""
        address = int(_checked(*driver.cuMemAlloc(n_bytes)))
        _checked(*driver.cuMemsetD8Async(address, 0, n_bytes, self._stream))
        return address

    def free(self, address: int) -> None:
        """Give memory back."""
        _checked(*driver.cuMemFree(address))

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Pinned:
        """A zeroed array in page-locked memory, at one address for the host and the card."""
        import ctypes

        n_bytes = prod(shape) * np.dtype(dtype).itemsize
        address = int(_checked(*driver.cuMemHostAlloc(n_bytes, driver.CU_MEMHOSTALLOC_DEVICEMAP)))
        raw = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8)), (n_bytes,))
        raw[:] = 0
        return Pinned(raw.view(dtype).reshape(shape), address)

    def upload(self, address: int, values: np.ndarray) -> None:
        """Copy to the card, behind everything launched so far; `values` may be changed afterwards."""
        values = np.ascontiguousarray(values)
        _checked(*driver.cuMemcpyHtoDAsync(address, values.ctypes.data, values.nbytes, self._stream))
        if values.nbytes > 1 << 16:  # smaller ones were copied out when the call returned
            self.synchronize()

    def download(self, address: int, values: np.ndarray) -> None:
        """Copy from the card, when everything launched so far has ended."""
        _checked(*driver.cuMemcpyDtoHAsync(values.ctypes.data, address, values.nbytes, self._stream))
        self.synchronize()

    def fill_zero(self, address: int, n_bytes: int) -> None:
        """Zeros, behind everything launched so far."""
        _checked(*driver.cuMemsetD8Async(address, 0, n_bytes, self._stream))

    # --- kernels --------------------------------------------------------------------------------------------------
    def load_launch(self, launch: Launch) -> Any:
        """The kernel's function, compiled and loaded if it is not yet, with room for the launch's shared memory."""
        module_key = (launch.program, launch.defines)
        if module_key not in self._modules:
            self._modules[module_key] = _checked(*driver.cuModuleLoadData(compile_cubin(launch.program, launch.defines, self.arch)))
        key = (*module_key, launch.kernel)
        if key not in self._functions:
            self._functions[key] = [_checked(*driver.cuModuleGetFunction(self._modules[module_key], launch.kernel.encode())), 0]
        held = self._functions[key]
        if launch.shared_bytes > max(held[1], 48 << 10):
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _checked(*driver.cuFuncSetAttribute(held[0], attribute, launch.shared_bytes))
            held[1] = launch.shared_bytes
        return held[0]

    def run(self, launch: Launch, *, handle: Any = None, dependent: bool = False) -> None:
        """Launch, or record while capturing. dependent: the kernel may start before the one before it has ended; it waits
        itself where it has to."""
        import ctypes

        function = handle if handle is not None else self.load_launch(launch)
        packed = ctypes.create_string_buffer(launch.packed())
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(packed))
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.threads, 1, 1
        config.sharedMemBytes, config.hStream = launch.shared_bytes, self._stream
        if dependent and self._can_depend:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        try:
            _checked(*driver.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0))
        except Internal as error:
            raise Internal(f"{launch.program}.{launch.kernel} {launch.grid}: {error}") from error

    def begin_capture(self) -> None:
        """What is launched from here on is recorded."""
        _checked(*driver.cuStreamBeginCapture(self._stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))

    def end_capture(self) -> Any:
        """What was recorded, ready to be launched."""
        graph = _checked(*driver.cuStreamEndCapture(self._stream))
        return _checked(*driver.cuGraphInstantiate(graph, 0))

    def launch_graph(self, graph: Any) -> None:
        """Launch a recorded graph."""
        _checked(*driver.cuGraphLaunch(graph, self._stream))

    # --- waiting --------------------------------------------------------------------------------------------------
    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait for something that the card writes into the host's memory. Raises Internal if it never does."""
        started_s = time.perf_counter()
        while not condition():
            waited_s = time.perf_counter() - started_s
            if waited_s > _SPIN_S:
                status, = driver.cuStreamQuery(self._stream)
                if status not in (driver.CUresult.CUDA_ERROR_NOT_READY, driver.CUresult.CUDA_SUCCESS):
                    raise Internal(f"CUDA: {status.name}")
                if waited_s > _MOST_WAIT_S or (status == driver.CUresult.CUDA_SUCCESS and not condition()):
                    raise Internal("the card has ended a window without its result")
                time.sleep(1e-4)

    def synchronize(self) -> None:
        """Wait for everything launched so far."""
        _checked(*driver.cuStreamSynchronize(self._stream))

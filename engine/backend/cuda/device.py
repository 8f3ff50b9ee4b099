"""One card: memory, kernels, launches, graphs, and one stream for all of it.

Owns the context and what is loaded into it; used from one thread. Every status is checked and named by its call. `Device`
is what the backend asks for: the tests have another one that computes on the processor, for which CUDA need not be there.
"""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np

from engine.backend.cuda.launch import Launch
from engine.backend.cuda.toolchain import compile_cubin
from engine.errors import Internal, OutOfMemory

_SPIN_S = 0.002  # a wait spins so long before it sleeps between looks
_MOST_WAIT_S = 30.0
_LARGE_BYTES = 1 << 16  # an upload of more may still read the host's memory after the call
_STATIC_SHARED = 48 << 10  # shared memory that a kernel gets without asking


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
    l2_bytes: int

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


class GpuDevice:
    """A card through the driver."""

    def __init__(self, ordinal: int = 0) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._call("cuInit", 0)
        self._device = self._call("cuDeviceGet", ordinal)
        self._call("cuCtxSetCurrent", self._call("cuDevicePrimaryCtxRetain", self._device))
        self._stream = self._call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        major, minor = self._attribute("COMPUTE_CAPABILITY_MAJOR"), self._attribute("COMPUTE_CAPABILITY_MINOR")
        self.arch = f"sm_{major}{minor}"
        self.sm_count, self.l2_bytes = self._attribute("MULTIPROCESSOR_COUNT"), self._attribute("L2_CACHE_SIZE")
        self.name = self._call("cuDeviceGetName", 128, self._device).split(b"\0")[0].decode()
        self._can_depend = major >= 9
        self._most_shared = self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self._capturing = False
        self._modules: dict[tuple, Any] = {}
        self._functions: dict[tuple, Any] = {}
        self._shared_bytes: dict[tuple, int] = {}  # what a function was last given room for

    def _call(self, name: str, *arguments: Any) -> Any:
        """What a function of the driver returns, or an error with its name."""
        status, *values = getattr(self._driver, name)(*arguments)
        if status == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise OutOfMemory(f"the card has no more memory ({name})")
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise Internal(f"{name}: {status.name}")
        return values[0] if len(values) == 1 else values

    def _attribute(self, name: str) -> int:
        kind = getattr(self._driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return self._call("cuDeviceGetAttribute", kind, self._device)

    def _not_while_recording(self, what: str) -> None:
        if self._capturing:
            raise Internal(f"{what} while a graph is recorded")

    # --- memory ---------------------------------------------------------------------------------------------------
    def free_bytes(self) -> int:
        """Memory of the card that nobody holds."""
        return self._call("cuMemGetInfo")[0]

    def allocate(self, n_bytes: int) -> int:
        """The address of new memory, zeroed. Raises OutOfMemory."""
        self._not_while_recording("memory is asked for")
        address = int(self._call("cuMemAlloc", n_bytes))
        self.fill_zero(address, n_bytes)
        return address

    def free(self, address: int) -> None:
        """Give memory back."""
        self._call("cuMemFree", address)

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Pinned:
        """A zeroed array in page-locked memory, at one address for the host and the card."""
        self._not_while_recording("page-locked memory is asked for")
        n_bytes = prod(shape) * np.dtype(dtype).itemsize
        address = int(self._call("cuMemHostAlloc", n_bytes, self._driver.CU_MEMHOSTALLOC_DEVICEMAP))
        raw = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8)), (n_bytes,))
        raw[:] = 0
        return Pinned(raw.view(dtype).reshape(shape), address)

    def upload(self, address: int, values: np.ndarray) -> None:
        """Copy to the card, behind everything launched so far; `values` may be changed afterwards."""
        self._not_while_recording("an upload")
        values = np.ascontiguousarray(values)
        self._call("cuMemcpyHtoDAsync", address, values.ctypes.data, values.nbytes, self._stream)
        if values.nbytes > _LARGE_BYTES:
            self.synchronize()

    def download(self, address: int, values: np.ndarray) -> None:
        """Copy from the card into a contiguous array, when everything launched so far has ended."""
        self._not_while_recording("a download")
        if not values.flags.c_contiguous:
            raise Internal("a download into an array that is not contiguous")
        self._call("cuMemcpyDtoHAsync", values.ctypes.data, address, values.nbytes, self._stream)
        self.synchronize()

    def fill_zero(self, address: int, n_bytes: int) -> None:
        """Zeros, behind everything launched so far."""
        self._call("cuMemsetD8Async", address, 0, n_bytes, self._stream)

    # --- kernels --------------------------------------------------------------------------------------------------
    def load_launch(self, launch: Launch) -> Any:
        """The kernel's function, compiled and loaded if it is not yet, with room for the launch's shared memory."""
        module_key = (launch.program, launch.defines)
        key = (*module_key, launch.kernel)
        if key not in self._functions:
            self._not_while_recording(f"{launch.program}.{launch.kernel} is loaded")
            if module_key not in self._modules:
                self._modules[module_key] = self._call(
                    "cuModuleLoadData", compile_cubin(launch.program, launch.defines, self.arch))
            self._functions[key] = self._call("cuModuleGetFunction", self._modules[module_key], launch.kernel.encode())
        if launch.shared_bytes > self._shared_bytes.get(key, _STATIC_SHARED):
            if launch.shared_bytes > self._most_shared:
                raise Internal(f"{launch.program}.{launch.kernel} asks for {launch.shared_bytes} bytes of shared memory; "
                               f"{self.name} has {self._most_shared}")
            kinds = self._driver.CUfunction_attribute
            self._call("cuFuncSetAttribute", self._functions[key], kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                       launch.shared_bytes)
            self._shared_bytes[key] = launch.shared_bytes
        return self._functions[key]

    def run(self, launch: Launch, *, handle: Any = None, dependent: bool = False) -> None:
        """Launch, or record while capturing. dependent: the kernel may start before the one before it has ended; it waits
        itself where it has to."""
        function = handle if handle is not None else self.load_launch(launch)
        packed = ctypes.create_string_buffer(launch.packed())
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(packed))
        config = self._driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.threads, 1, 1
        config.sharedMemBytes, config.hStream = launch.shared_bytes, self._stream
        if dependent and self._can_depend:
            attribute = self._driver.CUlaunchAttribute()
            attribute.id = self._driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        try:
            self._call("cuLaunchKernelEx", config, function, ctypes.addressof(pointers), 0)
        except Internal as error:
            raise Internal(f"{launch.program}.{launch.kernel} {launch.grid}: {error}") from error

    def begin_capture(self) -> None:
        """What is launched from here on is recorded."""
        self._call("cuStreamBeginCapture", self._stream, self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        self._capturing = True

    def end_capture(self) -> Any:
        """What was recorded, ready to be launched."""
        self._capturing = False
        graph = self._call("cuStreamEndCapture", self._stream)
        try:
            return self._call("cuGraphInstantiate", graph, 0)
        finally:
            self._call("cuGraphDestroy", graph)

    def launch_graph(self, graph: Any) -> None:
        """Launch a recorded graph."""
        self._call("cuGraphLaunch", graph, self._stream)

    # --- waiting --------------------------------------------------------------------------------------------------
    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait for something that the card writes into the host's memory. Raises Internal if it never does."""
        results = self._driver.CUresult
        started_s = time.perf_counter()
        while not condition():
            waited_s = time.perf_counter() - started_s
            if waited_s > _SPIN_S:
                status, = self._driver.cuStreamQuery(self._stream)
                if status not in (results.CUDA_ERROR_NOT_READY, results.CUDA_SUCCESS):
                    raise Internal(f"cuStreamQuery: {status.name}")
                if waited_s > _MOST_WAIT_S or (status == results.CUDA_SUCCESS and not condition()):
                    raise Internal("the card has ended a window without its result")
                time.sleep(1e-4)

    def synchronize(self) -> None:
        """Wait for everything launched so far."""
        self._call("cuStreamSynchronize", self._stream)

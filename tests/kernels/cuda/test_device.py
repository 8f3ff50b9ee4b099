"""The calls that a card's device makes, with a driver that is none: what is checked, named, asked for and refused."""

import ctypes
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from engine.backend.cuda import device as module
from engine.backend.cuda.launch import Launch
from engine.errors import Internal, OutOfMemory

driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
RESULTS = driver.CUresult
ATTRIBUTES = {"COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "MULTIPROCESSOR_COUNT": 132,
              "L2_CACHE_SIZE": 50 << 20, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10}


class FakeDriver:
    """Types are the real ones; functions succeed, are remembered, and return what `answers` says."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.fail: dict[str, RESULTS] = {}
        self.host = np.zeros(1 << 16, np.uint8)
        self.answers = {
            **dict.fromkeys(("cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuModuleLoadData", "cuStreamEndCapture",
                             "cuGraphInstantiate"), 5),
            "cuDeviceGetName": b"a card\0\0\0", "cuMemGetInfo": (1 << 30, 1 << 34), "cuMemAlloc": 4096,
            "cuMemHostAlloc": self.host.ctypes.data, "cuModuleGetFunction": 77, "cuStreamCreate": driver.CUstream(0)}

    def __getattr__(self, name: str):
        if not name.startswith("cu"):
            return getattr(driver, name)

        def call(*arguments):
            self.calls.append((name, *arguments))
            status = self.fail.get(name, RESULTS.CUDA_SUCCESS)
            if name == "cuDeviceGetAttribute":
                return status, ATTRIBUTES[arguments[0].name.removeprefix("CU_DEVICE_ATTRIBUTE_")]
            if name == "cuLaunchKernelEx":
                config = arguments[0]
                parameters = ctypes.cast(arguments[2], ctypes.POINTER(ctypes.c_void_p))
                packed = ctypes.cast(parameters[0], ctypes.POINTER(ctypes.c_int64))
                self.calls[-1] = (name, (config.gridDimX, config.gridDimY, config.gridDimZ), config.blockDimX,
                                  config.sharedMemBytes, len(config.attrs), packed[2], arguments[1])
            answer = self.answers.get(name, ())
            return (status, *answer) if isinstance(answer, tuple) else (status, answer)

        return call

    def named(self, name: str) -> list[tuple]:
        return [call[1:] for call in self.calls if call[0] == name]


@pytest.fixture
def fake(monkeypatch):
    made = FakeDriver()
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=made))
    monkeypatch.setattr(module, "compile_cubin", lambda *what: repr(what).encode())
    return made


@pytest.fixture
def card(fake):
    return module.GpuDevice()


def add_rows(*, shared_bytes: int = 0) -> Launch:
    return Launch("rows", (), "add_rows", (3, 2, 1), 256, shared_bytes, {
        "window": 0, "y": 16, "x": 32, "gate": None, "columns": 9, "x_scale": 1.0, "scale": 1.0})


def test_what_the_card_is(card):
    assert (card.name, card.arch, card.sm_count, card.l2_bytes) == ("a card", "sm_90", 132, 50 << 20)
    assert card.free_bytes() == 1 << 30


def test_memory_is_zeroed_and_given_back(card, fake):
    assert card.allocate(100) == 4096
    assert fake.named("cuMemsetD8Async")[0][:3] == (4096, 0, 100)
    card.free(4096)
    assert fake.named("cuMemFree") == [(4096,)]
    fake.host[:] = 7
    pinned = card.pinned((3, 2), np.int32)
    assert pinned.address == fake.host.ctypes.data and not pinned.array.any() and fake.host[24] == 7


def test_large_uploads_are_waited_for(card, fake):
    card.upload(4096, np.zeros(10, np.float32))
    assert not fake.named("cuStreamSynchronize")
    card.upload(4096, np.zeros((1 << 16, 4), np.float32)[:, ::2])
    assert len(fake.named("cuStreamSynchronize")) == 1 and fake.named("cuMemcpyHtoDAsync")[1][2] == 8 << 16
    with pytest.raises(Internal, match="not contiguous"):
        card.download(4096, np.zeros((4, 4))[:, ::2])


def test_errors_are_named_by_their_call(card, fake):
    fake.fail = {"cuMemAlloc": RESULTS.CUDA_ERROR_OUT_OF_MEMORY, "cuStreamSynchronize": RESULTS.CUDA_ERROR_ILLEGAL_ADDRESS,
                 "cuLaunchKernelEx": RESULTS.CUDA_ERROR_INVALID_VALUE, "cuStreamQuery": RESULTS.CUDA_ERROR_LAUNCH_FAILED}
    with pytest.raises(OutOfMemory, match="cuMemAlloc"):
        card.allocate(100)
    with pytest.raises(Internal, match="cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS"):
        card.synchronize()
    with pytest.raises(Internal, match=r"rows.add_rows \(3, 2, 1\): cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE"):
        card.run(add_rows())
    with pytest.raises(Internal, match="cuStreamQuery: CUDA_ERROR_LAUNCH_FAILED"):
        card.wait_for(lambda: False)


def test_a_launch(card, fake):
    card.run(add_rows())
    card.run(add_rows(), handle=78, dependent=True)
    first, second = fake.named("cuLaunchKernelEx")
    assert first == ((3, 2, 1), 256, 0, 0, 32, 77) and second == ((3, 2, 1), 256, 0, 1, 32, 78)
    assert len(fake.named("cuModuleLoadData")) == 1


def test_shared_memory_is_asked_for_once_and_within_what_there_is(card, fake):
    for n_bytes in (1000, 60000, 50000, 70000):
        card.load_launch(add_rows(shared_bytes=n_bytes))
    assert [call[2] for call in fake.named("cuFuncSetAttribute")] == [60000, 70000]
    with pytest.raises(Internal, match="300000 bytes of shared memory; a card has 232448"):
        card.load_launch(add_rows(shared_bytes=300000))


def test_nothing_is_allocated_copied_or_loaded_while_a_graph_is_recorded(card, fake):
    handle = card.load_launch(add_rows())
    card.begin_capture()
    card.run(add_rows(), handle=handle, dependent=True)
    other = Launch("rows", (("A", "1"),), "add_rows", (1, 1, 1), 32, 0, add_rows().arguments)
    for what in (lambda: card.allocate(16), lambda: card.pinned((1,), np.int32), lambda: card.upload(4096, np.zeros(1)),
                 lambda: card.download(4096, np.zeros(1)), lambda: card.load_launch(other)):
        with pytest.raises(Internal, match="while a graph is recorded"):
            what()
    card.launch_graph(card.end_capture())
    assert len(fake.named("cuGraphLaunch")) == len(fake.named("cuGraphDestroy")) == 1
    card.allocate(16)


def test_a_window_without_its_result(card):
    with pytest.raises(Internal, match="ended a window without its result"):
        card.wait_for(lambda: False)
    card.wait_for(lambda: True)

"""Threads on the processor behave as a card's, and what a card would leave undefined is found and named."""

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from engine.backend.cuda.launch import Launch
from tools.cuda_on_cpu.device import EmulatedDevice
from tools.cuda_on_cpu.emulator import KernelFault, load, missing_compiler

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))
PATTERN = 0xDBDBDBDB


def run(kernel, *arguments, grid=(1, 1, 1), threads=32, shared=0, **settings):
    """Run a kernel of the sample; arrays go as addresses. What is wrong, or None."""
    values = [value.ctypes.data if isinstance(value, np.ndarray) else value for value in arguments]
    program = load("emulator_sample", (), Path(__file__).parent)
    return program.run(kernel, grid, threads, shared, struct.pack(f"<{len(values)}q", *values), **settings)


def words(n: int, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 32, n, np.uint32)


@pytest.mark.parametrize("seed", range(4))
def test_a_sum_of_rows_in_every_order_of_blocks(seed):
    x, out = np.random.default_rng(0).standard_normal((9, 1000)).astype(np.float32), np.zeros(9, np.float32)
    assert run("sum_rows", x, out, 1000, grid=(9, 1, 1), threads=256, seed=seed) is None
    assert np.allclose(out, x.sum(1), atol=1e-4)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("threads", [1, 31, 32, 100, 256])
def test_block_barriers(threads, seed):
    x, out = words(threads), np.zeros(threads, np.uint32)
    assert run("rotate", x, out, 5, threads=threads, shared=4 * threads, seed=seed) is None
    assert np.array_equal(out, np.roll(x, -5))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("left", [1, 20, 32, 40, 96])
def test_threads_that_have_left_are_absent(left, seed):
    out = np.zeros(96, np.uint32)
    assert run("leave_early", 0, out, left, threads=96, seed=seed) is None
    lanes = [min(max(left - first, 0), 32) for first in (0, 32, 64)]
    expected = np.repeat([((1 << n) - 1) & 0x55555555 for n in lanes], 32)  # all ^ odd = even
    assert np.array_equal(out[:left], expected[:left]) and not out[left:].any()


@pytest.mark.parametrize("seed", range(3))
def test_exchanges_of_a_warp(seed):
    x, out = words(32, seed=seed), np.zeros((32, 6), np.uint32)
    assert run("exchange", x, out, 0, seed=seed) is None
    lanes = np.arange(32)
    assert (out[:, 0] == x[5]).all() and np.array_equal(out[:, 1], x[lanes ^ 9])
    assert (out[:, 2] == np.bitwise_or.reduce((x & 1) << lanes.astype(np.uint32))).all()
    assert (out[:, 3] == x.sum(dtype=np.uint32)).all()
    assert (out[:, 4] == x.max()).all() and (out[:, 5] == x.min()).all()


def test_orders_of_blocks():
    orders = []
    for seed in range(4):
        counter, out = np.zeros(1, np.uint32), np.zeros(24, np.uint32)
        assert run("indices", counter, out, 0, grid=(2, 3, 4), threads=33, seed=seed) is None
        assert sorted(out) == list(range(24))
        orders.append(list(out))
    assert orders[0] == orders[1][::-1] == list(range(24))
    assert len({tuple(order) for order in orders}) == 4


def test_conversions_round_as_numpy():
    halves = np.arange(1 << 16, dtype=np.uint32) << 16
    edges = np.array([0, 65504, 65519.996, 65520, 1e30, np.inf, np.nan, 2**-24, 2**-25, 2**-25 * 1.001, 6.1e-5, 1 + 2**-11,
                      1 + 3 * 2**-11], np.float32)
    x = np.concatenate([halves, edges.view(np.uint32), (-edges).view(np.uint32), words(5000)])
    out = np.zeros((len(x), 2), np.uint32)
    assert run("convert", x, out, len(x), grid=(-(-len(x) // 64), 1, 1), threads=64) is None
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.view(np.float32).astype(np.float16)
        back = (x >> 16).astype(np.uint16).view(np.float16).astype(np.float32)
    got = out[:, 0].astype(np.uint16).view(np.float16)
    numbers = ~np.isnan(expected)
    assert np.array_equal(got[numbers].view(np.uint16), expected[numbers].view(np.uint16)) and np.isnan(got[~numbers]).all()
    got, numbers = out[:, 1].view(np.float32), ~np.isnan(back)
    assert np.array_equal(got[numbers].view(np.uint32), back[numbers].view(np.uint32)) and np.isnan(got[~numbers]).all()


def test_integers():
    x, out = words(3 * 64).reshape(64, 3), np.zeros((64, 5), np.uint32)
    assert run("integers", x, out, 0, threads=64) is None
    a, b = (np.ascontiguousarray(x[:, i]).view(np.uint8).reshape(64, 4).astype(np.int64) for i in (0, 1))
    a_signed, b_signed, c = (a ^ 128) - 128, (b ^ 128) - 128, x[:, 2].astype(np.int64)
    assert np.array_equal(out[:, 0], ((a * b_signed).sum(1) + c).astype(np.uint32))
    assert np.array_equal(out[:, 1], ((a_signed * b_signed).sum(1) + c).astype(np.uint32))
    both = np.concatenate([a, b], 1)
    for thread in range(64):
        chosen = [both[thread, x[thread, 2] >> 4 * i & 7] for i in range(4)]
        assert out[thread, 2] == sum(int(byte) << 8 * i for i, byte in enumerate(chosen))
        assert out[thread, 3] == int(x[thread, 0]).bit_count()
        assert out[thread, 4] == 32 - (int(x[thread, 0]) >> min(thread % 33, 31)).bit_length()


# where element i of a lane's fragment lies, by the lane's group and its place in that, as the PTX manual says
BYTES_A = lambda g, t, i: (g + 8 * (4 <= i < 8 or i >= 12), 4 * t + i % 4 + 16 * (i >= 8))  # noqa: E731
BYTES_B = lambda g, t, i: (4 * t + i % 4 + 16 * (i >= 4), g)  # noqa: E731
HALVES_A = lambda g, t, i: (g + 8 * (i % 4 >= 2), 2 * t + i % 2 + 8 * (i >= 4))  # noqa: E731
HALVES_B = lambda g, t, i: (2 * t + i % 2 + 8 * (i >= 2), g)  # noqa: E731
SUMS = lambda g, t, i: (g + 8 * (i >= 2), 2 * t + i % 2)  # noqa: E731


def fragments(matrix: np.ndarray, place) -> np.ndarray:
    """u32 [32, registers]: each lane's elements of a matrix."""
    lanes = [[matrix[place(lane // 4, lane % 4, i)] for i in range(matrix.size // 32)] for lane in range(32)]
    return np.array(lanes, matrix.dtype).view(np.uint32)


@pytest.mark.parametrize(("kernel", "left_type"), [("mma_u8s8", np.uint8), ("mma_s8s8", np.int8)])
def test_products_of_bytes(kernel, left_type):
    rng, kind = np.random.default_rng(1), np.iinfo(left_type)
    a = rng.integers(kind.min, kind.max + 1, (16, 32)).astype(left_type)
    b, c = rng.integers(-128, 128, (32, 8)).astype(np.int8), rng.integers(-99, 99, (16, 8)).astype(np.int32)
    out = fragments(c, SUMS)
    assert run(f"{kernel}_fragments", fragments(a, BYTES_A), fragments(b, BYTES_B), out) is None
    assert np.array_equal(out, fragments(a.astype(np.int32) @ b.astype(np.int32) + c, SUMS))


def test_products_of_halves():
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-64, 64, shape).astype(np.float16) for shape in ((16, 16), (16, 8)))
    c = rng.integers(-99, 99, (16, 8)).astype(np.float32)
    out = fragments(c, SUMS)
    assert run("mma_f16_fragments", fragments(a, HALVES_A), fragments(b, HALVES_B), out) is None
    expected = a.astype(np.float32) @ b.astype(np.float32) + c  # whole numbers: exact in any order
    assert np.array_equal(out, fragments(expected, SUMS))


@pytest.mark.parametrize("wait", [0, 1, 2])
def test_copies_arrive_when_they_are_waited_for(wait):
    x, out = words(256).reshape(2, 128), np.zeros((2, 128), np.uint32)
    assert run("copy", aligned(x), held := aligned(out), wait) is None
    arrived = [wait >= 1, wait >= 2]
    for half in range(2):
        assert np.array_equal(held[half], x[half] if arrived[half] else np.full(128, PATTERN, np.uint32))


def aligned(values: np.ndarray) -> np.ndarray:
    """A copy at a multiple of 16."""
    room = np.zeros(values.nbytes + 16, np.uint8)
    start = -room.ctypes.data % 16
    copy = room[start:start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def test_shared_memory_holds_a_pattern_before_every_block():
    out = np.zeros(64 * 3, np.uint32)
    assert run("untouched", 0, out, 0, grid=(3, 1, 1), shared=128) is None
    assert (out == PATTERN).all()


# --- what is wrong is found -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("kernel", "n", "expected"), [
    ("barriers_apart", 32, r"block \(0, 0, 0\): .*for ever.*thread 0 for the block at emulator_sample.cu:\d+, thread 32 for"),
    ("barriers_apart", 10, r"thread 0 for the block at emulator_sample.cu:\d+, thread 10 for the block"),
    ("warp_and_block", 0, r"thread 0 for its warp at emulator_sample.cu:\d+, thread 3 for the block"),
    ("absent_lane", 0, r"thread 0: asks at emulator_sample.cu:\d+ for what lane 25 holds, which is not there"),
    ("write_fixed", 1, r"thread 31: index 32 is outside of an array at emulator_sample.cu:\d+"),
    ("write_dynamic", 100, r"dynamic shared memory of 100 bytes was written behind its end"),
    ("odd_address", 2, r"thread 0: an access at an odd address"),
    ("divide_by", 0, r"thread 0: a division by zero"),
])
def test_faults_are_named(kernel, n, expected):
    threads = 64 if "barrier" in kernel else 32
    found = run(kernel, np.zeros(64, np.uint32), np.zeros(64, np.uint32), n, threads=threads, shared=100)
    assert found is not None and re.search(expected, found[0]), found


def test_uniform_barriers_are_fine():
    assert run("barriers_apart", 0, 0, 64, threads=64) is None
    assert run("write_fixed", 0, np.zeros(32, np.uint32), 0) is None
    assert run("write_dynamic", 0, 0, 99, shared=100) is None


def test_a_missing_barrier_is_found_by_an_order():
    results = []
    for seed in range(2):
        out = np.zeros(64, np.uint32)
        assert run("no_barrier", 0, out, 0, threads=64, seed=seed) is None
        results.append((out == 5).all())
    assert results == [True, False]


def test_too_many_threads():
    found = run("exchange", np.zeros(64, np.uint32), np.zeros(512, np.uint32), 0, threads=64)
    assert found is not None and "64 threads; the kernel is made for 1 to 32" in found[0]


def test_a_kernel_that_is_started_early_must_wait_itself():
    assert run("awaits", 0, 0, 1, dependent=True) is None
    assert run("awaits", 0, 0, 0) is None
    found = run("awaits", 0, 0, 0, dependent=True)
    assert found is not None and "waits for the kernel before" in found[0]


@pytest.mark.parametrize(("allowed", "refused"), [(0, {1, 2, 3}), (1, {2, 3}), (3, set())])  # nothing, reads, all
def test_memory_of_the_kernel_before_is_closed_until_it_is_awaited(allowed, refused):
    device = EmulatedDevice()
    x, out = device.allocate(4096), device.allocate(4096)  # whole pages
    for early in range(4):
        closed = [(x, 4096, allowed), (out, 4096, allowed)]
        found = run("reads_early", x, out, early, dependent=True, closed=closed)
        assert (found is not None) == (early in refused)
        if found is not None:
            assert "thread 0: the kernel before may still use this memory" in found[0] and found[1] in (x, out)
    device.fill_zero(x, 4096)


# --- memory ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("n_bytes", "words_away"), [(4, 4), (100, 29), (4096, 1024), (4096, -1), (5000, 1252), (5000, 2000)])
def test_accesses_outside_of_an_allocation(n_bytes, words_away):
    device = EmulatedDevice()
    address, other = device.allocate(n_bytes), device.allocate(64)
    last = n_bytes // 4 - 1
    assert run("write_global", other, address, last) is None and run("read_global", address, other, last) is None
    device.check_guards()
    for kernel, arguments in (("write_global", (other, address)), ("read_global", (address, other))):
        found = run(kernel, *arguments, words_away)
        assert found is not None and "thread 7: an access outside of memory" in found[0]
        assert found[1] == address + 4 * words_away
    assert device.place_of(address + n_bytes) == f"at byte {n_bytes} of an allocation of {n_bytes}"


def test_bytes_beside_an_allocation_are_watched():
    device = EmulatedDevice()
    address = device.allocate(20)
    assert run("write_global", 0, address, -1) is None
    with pytest.raises(KernelFault, match="around an allocation of 20 bytes"):
        device.check_guards()
    with pytest.raises(KernelFault, match="around an allocation of 20 bytes"):
        device.free(address)


def test_memory_is_zeroed_and_copies_stay_inside():
    device = EmulatedDevice()
    address, values = device.allocate(100), np.ones(100, np.uint8)
    device.download(address, values)
    assert not values.any()
    device.upload(address + 50, np.full(50, 3, np.uint8))
    device.download(address, values)
    assert list(values) == [0] * 50 + [3] * 50
    with pytest.raises(KernelFault, match="60 bytes at byte 50 of an allocation of 100"):
        device.upload(address + 50, np.zeros(60, np.uint8))
    pinned = device.pinned((3, 2), np.int32)
    pinned.array[...] = 9
    device.download(pinned.address, values[:24])
    assert (values[:24].view(np.int32) == 9).all()


def test_graphs_are_replayed_and_take_no_memory():
    device = EmulatedDevice()
    counter, out = device.allocate(4), device.allocate(4)
    launch = Launch("rows", (), "add_rows", (1, 1, 1), 256, 0, _arguments(device, counter, out))
    device.begin_capture()
    device.run(launch)
    device.run(launch)
    with pytest.raises(KernelFault, match="while a graph is recorded"):
        device.allocate(16)
    graph = device.end_capture()
    assert device.launches == 0
    device.launch_graph(graph)
    device.launch_graph(graph)
    assert device.launches == 4
    value = np.zeros(1, np.float32)
    device.download(out, value)
    assert value[0] == 4 * 1.5


def _arguments(device: EmulatedDevice, y: int, x: int) -> dict:
    """add_rows over one value: x += y."""
    window = device.allocate(256)
    device.upload(window, np.array([1], np.int64))  # rows
    device.upload(y, np.array([1.5], np.float32))
    return {"window": window, "y": y, "x": x, "gate": None, "columns": 1, "x_scale": 1.0, "scale": 1.0}

"""Thirty-two codes in a register out of packed bits: nibbles, two bits, single bits, base three, and entries of a codebook.

The vector operations that only the block formats need, on top of `simd`; they know nothing of any format's layout.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from llvmlite import ir
from numba import types

from engine.backend.cpu import isa
from engine.backend.cpu.simd import F32, I8, I16, I32, I64, declare, half_bits, i8x32, lane_mask, operation, pointer, splat

_BYTES = ir.VectorType(I8, 32)


def _constant(values: Sequence[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(I8, len(values)), [int(v) for v in values])


def _load(b, address, n_bytes: int):
    return b.load(pointer(b, address, ir.VectorType(I8, n_bytes)), align=1)


def _nibbles(order: Sequence[int]):
    """Sixteen bytes as thirty-two codes of four bits; `order` numbers the low nibbles 0..15 and the high ones 16..31."""
    def emit(b, address):
        raw = _load(b, address, 16)
        return b.shuffle_vector(b.and_(raw, _constant([15] * 16)), b.lshr(raw, _constant([4] * 16)), lane_mask(order))
    return operation(i8x32, [types.int64], emit)


nibbles_i8x32 = _nibbles(range(32))  # low nibbles of 16 bytes, then their high nibbles
nibbles_of_8_i8x32 = _nibbles([*range(8), *range(16, 24), *range(8, 16), *range(24, 32)])  # the same for 8 bytes, twice


def _crumbs(b, address):
    """Eight bytes as thirty-two codes of two bits, low bits first."""
    copies = b.shuffle_vector(*[_load(b, address, 8)] * 2, lane_mask(j // 4 for j in range(32)))
    return b.and_(b.lshr(copies, _constant([2 * (j % 4) for j in range(32)])), _constant([3] * 32))


crumbs_i8x32 = operation(i8x32, [types.int64], _crumbs)


def bit_masks(bits: Sequence[int]):
    """An operation on a word: byte j is 0xFF where its bit `bits[j]` is set, else 0."""
    def emit(b, word):
        raw = b.bitcast(splat(b, word, 8), _BYTES)
        copies = b.shuffle_vector(raw, raw, lane_mask(bit // 8 for bit in bits))
        single = _constant([1 << bit % 8 for bit in bits])
        return b.sext(b.icmp_unsigned("==", b.and_(copies, single), single), _BYTES)
    return operation(i8x32, [types.int32], emit)


spread_bits = bit_masks(range(32))


def _digits(b, x):
    """The first digit after the point of each byte read as a fraction in base three: 3 x / 256."""
    return b.add(*(b.zext(b.icmp_unsigned(">=", x, _constant([first] * 32)), _BYTES) for first in (86, 171)))


ternary_i8x32 = operation(i8x32, [i8x32], _digits)
mul_i8x32 = operation(i8x32, [i8x32, i8x32], lambda b, x, y: b.mul(x, y))
negate_i8x32 = operation(  # x where the mask's byte is 0, -x where it is 0xFF
    i8x32, [i8x32, i8x32], lambda b, x, mask: b.sub(b.xor(x, mask), mask))


def _sixteen_twice(b, address):
    raw = _load(b, address, 16)
    return b.shuffle_vector(raw, raw, lane_mask([*range(16), *range(16)]))


def _sixteen_and_four(b, address):
    """Bytes 0..15, then bytes 16..19 four times over."""
    raw = _load(b, address, 16)
    word = b.load(pointer(b, b.add(address, ir.Constant(I64, 16)), I32), align=1)
    return b.shuffle_vector(raw, b.bitcast(splat(b, word, 4), ir.VectorType(I8, 16)), lane_mask(range(32)))


load_twice_i8x32 = operation(i8x32, [types.int64], _sixteen_twice)  # sixteen bytes, twice
load_16_and_4_i8x32 = operation(i8x32, [types.int64], _sixteen_and_four)


def constant_i8x32(values: Sequence[int]):
    """An operation that gives thirty-two constant bytes; its argument is not looked at."""
    return operation(i8x32, [types.int64], lambda b, _: _constant(values))


def lookup_i8x32(values: Sequence[int]):
    """An operation that maps each byte 0..15 through sixteen constant bytes."""
    constant = _constant([*values, *values])

    def emit(b, index):
        if isa.tier() != "plain":
            function = declare(b, "llvm.x86.avx2.pshuf.b", ir.FunctionType(_BYTES, [_BYTES, _BYTES]))
            return b.call(function, [constant, index])
        out = ir.Constant(_BYTES, ir.Undefined)
        for j in range(32):
            lane = ir.Constant(I32, j)
            code = b.zext(b.extract_element(index, lane), I32)
            out = b.insert_element(out, b.extract_element(constant, code), lane)
        return out
    return operation(i8x32, [i8x32], emit)


def _table(b, numbers: np.ndarray):
    """Unsigned integers as a constant array of the module under construction."""
    kind = ir.ArrayType(ir.IntType(8 * numbers.itemsize), len(numbers))
    name = "table_" + hashlib.sha256(numbers.tobytes()).hexdigest()[:16]
    table = b.module.globals.get(name)
    if table is None:
        table = ir.GlobalVariable(b.module, kind, name)
        table.linkage, table.global_constant = "internal", True
        table.initializer = ir.Constant(kind, [int(v) for v in numbers])
    return table


def _entry(b, table, index, kind):
    return b.load(b.bitcast(b.gep(table, [ir.Constant(I64, 0), b.zext(index, I64)]), kind.as_pointer()))


def codebook_i8x32(entries: np.ndarray) -> Callable:
    """An operation that puts entries of a codebook side by side: u8 [n, 8] takes four indices, u8 [n, 4] eight.

    The entries become a constant of the kernel. An index must be below n.
    """
    width = entries.shape[1]
    numbers = np.ascontiguousarray(entries, np.uint8).view(f"<u{width}")[:, 0]
    kind, count = (ir.DoubleType(), 4) if width == 8 else (F32, 8)  # as floats, because two loads then make half a vector

    def emit(b, *indices):
        table, out = _table(b, numbers), ir.Constant(ir.VectorType(kind, count), ir.Undefined)
        for j, index in enumerate(indices):
            out = b.insert_element(out, _entry(b, table, index, kind), ir.Constant(I32, j))
        return b.bitcast(out, _BYTES)
    return operation(i8x32, [types.int32] * count, emit)


def table_f32(values: np.ndarray) -> Callable:
    """An operation that looks up a float32 by an index below the number of values."""
    numbers = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return operation(types.float32, [types.int32], lambda b, index: _entry(b, _table(b, numbers), index, F32))


load_u16 = operation(types.int32, [types.int64], lambda b, p: b.zext(b.load(pointer(b, p, I16), align=1), I32))
f32_of_half = operation(types.float32, [types.int32], lambda b, v: half_bits(b, b.and_(v, ir.Constant(I32, 0xFFFF)), I32, F32))

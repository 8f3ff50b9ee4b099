"""Vectors as numba values: sixteen f32 or i32 lanes, sixty-four bytes, and the few operations the kernels are made of.

Float operations are plain LLVM adds and multiplies in a fixed order (never contracted to fma), and the int8 products
are exact integers, so every tier of `isa` gives the same bits. Addresses are int64 numbers; loads need no alignment.
"""

from llvmlite import ir
from numba import types
from numba.core.datamodel import PrimitiveModel
from numba.extending import intrinsic, register_model

from engine.backend.cpu import isa

I8, I16, I32, I64, F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_ELEMENTS = {"i8": I8, "i32": I32, "f32": F32}


class Vector(types.Type):
    """A numba type that is one LLVM vector."""

    def __init__(self, element: str, lanes: int) -> None:
        self.element, self.lanes = element, lanes
        super().__init__(name=f"vector({element}x{lanes})")


@register_model(Vector)
class VectorModel(PrimitiveModel):
    """Held as the LLVM vector itself, in registers where they suffice."""

    def __init__(self, manager, numba_type) -> None:
        super().__init__(manager, numba_type, ir.VectorType(_ELEMENTS[numba_type.element], numba_type.lanes))


f32x16, i32x16, i8x64, i8x32, i32x8, f32x8 = (
    Vector("f32", 16), Vector("i32", 16), Vector("i8", 64), Vector("i8", 32), Vector("i32", 8), Vector("f32", 8))


def _ir_vector(vector: Vector) -> ir.VectorType:
    return ir.VectorType(_ELEMENTS[vector.element], vector.lanes)


def declare(builder, name: str, signature: ir.FunctionType) -> ir.Function:
    """An external function or LLVM intrinsic of the module under construction."""
    found = builder.module.globals.get(name)
    return found if found is not None else ir.Function(builder.module, signature, name)


def pointer(builder, address, element):
    """An int64 address as a pointer to an LLVM type."""
    return builder.inttoptr(address, element.as_pointer())


def splat(builder, scalar, lanes: int):
    """A scalar in every lane of a vector."""
    vector = ir.VectorType(scalar.type, lanes)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), lane_mask([0] * lanes))


def lane_mask(lanes) -> ir.Constant:
    """Constant lane numbers for a shuffle."""
    lanes = list(lanes)
    return ir.Constant(ir.VectorType(I32, len(lanes)), lanes)


def operation(result, arguments, emit):
    """An intrinsic with this numba signature whose code is `emit(builder, *values)`."""
    signature = result(*arguments)

    def code(context, builder, _signature, values):
        out = emit(builder, *values)
        return context.get_dummy_value() if out is None else out

    shapes = (  # numba asks for the arity in the Python signature
        None,
        lambda typing, x: (signature, code),
        lambda typing, x, y: (signature, code),
        lambda typing, x, y, z: (signature, code),
        lambda typing, a, b, c, d: (signature, code),
        None, None, None,
        lambda typing, a, b, c, d, e, f, g, h: (signature, code))
    return intrinsic(shapes[len(arguments)])


def _load(vector: Vector):
    return operation(vector, [types.int64], lambda b, p: b.load(pointer(b, p, _ir_vector(vector)), align=1))


def _store(vector: Vector):
    def emit(b, p, value):
        b.store(value, pointer(b, p, _ir_vector(vector)), align=1)
    return operation(types.void, [types.int64, vector], emit)


load_f32x16, load_i32x16, load_i8x64, load_i8x32 = _load(f32x16), _load(i32x16), _load(i8x64), _load(i8x32)
load_f32x8, load_i32x8 = _load(f32x8), _load(i32x8)
store_f32x16, store_i8x32 = _store(f32x16), _store(i8x32)


def _scalar_load(element, numba_type, bits=None):
    def emit(b, p):
        value = b.load(pointer(b, p, element), align=1)
        return value if bits is None else bits(b, value)
    return operation(numba_type, [types.int64], emit)


def _scalar_store(element, numba_type, bits=None):
    def emit(b, p, value):
        b.store(value if bits is None else bits(b, value), pointer(b, p, element), align=1)
    return operation(types.void, [types.int64, numba_type], emit)


load_i64 = _scalar_load(I64, types.int64)
load_i32 = _scalar_load(I32, types.int32)
load_f32 = _scalar_load(F32, types.float32)
load_u8 = _scalar_load(I8, types.int32, lambda b, v: b.zext(v, I32))
load_s8 = _scalar_load(I8, types.int32, lambda b, v: b.sext(v, I32))
store_i64 = _scalar_store(I64, types.int64)
store_i32 = _scalar_store(I32, types.int32)
store_f32 = _scalar_store(F32, types.float32)
store_i8 = _scalar_store(I8, types.int32, lambda b, v: b.trunc(v, I8))
bits_of_f32 = operation(types.int32, [types.float32], lambda b, v: b.bitcast(v, I32))
f32_of_bits = operation(types.float32, [types.int32], lambda b, v: b.bitcast(v, F32))

splat_f32 = operation(f32x16, [types.float32], lambda b, v: splat(b, v, 16))
splat_i32 = operation(i32x16, [types.int32], lambda b, v: splat(b, v, 16))
splat_i8 = operation(i8x64, [types.int32], lambda b, v: splat(b, b.trunc(v, I8), 64))
splat_i8x32 = operation(i8x32, [types.int32], lambda b, v: splat(b, b.trunc(v, I8), 32))
splat_bytes = operation(  # four bytes, sixteen times
    i8x64, [types.int32], lambda b, v: b.bitcast(splat(b, v, 16), ir.VectorType(I8, 64)))

add_f32 = operation(f32x16, [f32x16, f32x16], lambda b, x, y: b.fadd(x, y))
sub_f32 = operation(f32x16, [f32x16, f32x16], lambda b, x, y: b.fsub(x, y))
mul_f32 = operation(f32x16, [f32x16, f32x16], lambda b, x, y: b.fmul(x, y))
div_f32 = operation(f32x16, [f32x16, f32x16], lambda b, x, y: b.fdiv(x, y))
add_f32x8 = operation(f32x8, [f32x8, f32x8], lambda b, x, y: b.fadd(x, y))
mul_f32x8 = operation(f32x8, [f32x8, f32x8], lambda b, x, y: b.fmul(x, y))
add_i32x8 = operation(i32x8, [i32x8, i32x8], lambda b, x, y: b.add(x, y))
mul_i32x8 = operation(i32x8, [i32x8, i32x8], lambda b, x, y: b.mul(x, y))
splat_i32x8 = operation(i32x8, [types.int32], lambda b, v: splat(b, v, 8))
f32_of_i32x8 = operation(f32x8, [i32x8], lambda b, x: b.sitofp(x, _ir_vector(f32x8)))
sub_scaled_i32x8 = operation(  # x - y * factor
    i32x8, [i32x8, i32x8, types.int32], lambda b, x, y, factor: b.sub(x, b.mul(y, splat(b, factor, 8))))
add_i32 = operation(i32x16, [i32x16, i32x16], lambda b, x, y: b.add(x, y))
mul_i32 = operation(i32x16, [i32x16, i32x16], lambda b, x, y: b.mul(x, y))
lane_i32x8 = operation(types.int32, [i32x8, types.int64], lambda b, x, lane: b.extract_element(x, b.trunc(lane, I32)))
zero_i32x8 = operation(i32x8, [types.int64], lambda b, _: ir.Constant(_ir_vector(i32x8), [0] * 8))
to_f32 = operation(types.float32, [types.int64], lambda b, v: b.sitofp(v, F32))
f32_of_i32 = operation(f32x16, [i32x16], lambda b, x: b.sitofp(x, _ir_vector(f32x16)))


def _bytes(vector: Vector):
    """Bitwise and, or, shift right, shift left (of every byte, by one count) on a byte vector."""
    def shift(left):
        def emit(b, x, count):
            by = splat(b, b.trunc(count, I8), vector.lanes)
            return b.shl(x, by) if left else b.lshr(x, by)
        return operation(vector, [vector, types.int32], emit)

    two = [vector, vector]
    return (operation(vector, two, lambda b, x, y: b.and_(x, y)), operation(vector, two, lambda b, x, y: b.or_(x, y)),
            shift(False), shift(True))


and_i8x64, or_i8x64, shr_i8x64, shl_i8x64 = _bytes(i8x64)
and_i8x32, or_i8x32, shr_i8x32, shl_i8x32 = _bytes(i8x32)
add_i8x32 = operation(i8x32, [i8x32, i8x32], lambda b, x, y: b.add(x, y))
join_halves = operation(i8x64, [i8x32, i8x32], lambda b, x, y: b.shuffle_vector(x, y, lane_mask(range(64))))


def _dot_generic(b, accumulator, unsigned, signed, lanes: int):
    """acc[i] += sum over 4 adjacent bytes of u8 * s8, in plain LLVM."""
    wide = ir.VectorType(I32, 4 * lanes)
    product = b.mul(b.zext(unsigned, wide), b.sext(signed, wide))
    for k in range(4):
        part = b.shuffle_vector(product, product, lane_mask(range(k, 4 * lanes, 4)))
        accumulator = b.add(accumulator, part)
    return accumulator


def _dot_avx2(b, accumulator, unsigned, signed, lanes: int):
    """The same through pmaddwd on words: exact for every byte, where pmaddubsw would saturate above 127."""
    words, half = ir.VectorType(I16, 16), ir.VectorType(I32, 8)
    madd = declare(b, "llvm.x86.avx2.pmadd.wd", ir.FunctionType(half, [words, words]))
    parts = []
    for start in range(0, 4 * lanes, 16):
        piece = lane_mask(range(start, start + 16))
        u = b.zext(b.shuffle_vector(unsigned, unsigned, piece), words)
        s = b.sext(b.shuffle_vector(signed, signed, piece), words)
        parts.append(b.call(madd, [u, s]))
    for x, y in zip(parts[::2], parts[1::2], strict=True):
        pairs = b.shuffle_vector(x, y, lane_mask(range(16)))
        even = b.shuffle_vector(pairs, pairs, lane_mask(range(0, 16, 2)))
        odd = b.shuffle_vector(pairs, pairs, lane_mask(range(1, 16, 2)))
        parts[parts.index(x)] = b.add(even, odd)
    sums = parts[::2]
    total = sums[0] if len(sums) == 1 else b.shuffle_vector(sums[0], sums[1], lane_mask(range(16)))
    return b.add(accumulator, total)


def _dot_vnni(b, accumulator, unsigned, signed, lanes: int):
    bits = 32 * lanes
    ints, raw = ir.VectorType(I32, lanes), ir.VectorType(I8, 4 * lanes)
    function = declare(b, f"llvm.x86.avx512.vpdpbusd.{bits}", ir.FunctionType(ints, [ints, raw, raw]))
    return b.call(function, [accumulator, unsigned, signed])


def _dot(lanes: int, ints: Vector, raw: Vector):
    emit = {"plain": _dot_generic, "avx2": _dot_avx2, "vnni": _dot_vnni}[isa.tier()]
    return operation(ints, [ints, raw, raw], lambda b, acc, u, s: emit(b, acc, u, s, lanes))


dot_i8x64 = _dot(16, i32x16, i8x64)  # acc[i] + sum of u8 * s8 over bytes 4i..4i+3
dot_i8x32 = _dot(8, i32x8, i8x32)


def _dot_words(b, accumulator, words, factors):
    """acc + words * factors where every |word| < 2**15 and 0 <= factor < 2**15, in one instruction where there is one."""
    if isa.tier() != "vnni":
        return b.add(accumulator, b.mul(words, factors))
    halves, ints = ir.VectorType(I16, 32), _ir_vector(i32x16)
    function = declare(b, "llvm.x86.avx512.vpdpwssd.512", ir.FunctionType(ints, [ints, halves, halves]))
    return b.call(function, [accumulator, b.bitcast(words, halves), b.bitcast(factors, halves)])


dot_words = operation(i32x16, [i32x16, i32x16, i32x16], _dot_words)
load_s8x16 = operation(i32x16, [types.int64], lambda b, p: b.sext(
    b.load(pointer(b, p, ir.VectorType(I8, 16)), align=1), _ir_vector(i32x16)))


def _reduce_i32(vector: Vector):
    kind = _ir_vector(vector)

    def emit(b, x):
        name = f"llvm.vector.reduce.add.v{vector.lanes}i32"
        return b.call(declare(b, name, ir.FunctionType(I32, [kind])), [x])
    return operation(types.int32, [vector], emit)


sum_i32x16, sum_i32x8 = _reduce_i32(i32x16), _reduce_i32(i32x8)


def _fold(width: int):
    """Two vectors of partial sums as one: adjacent groups of `width` lanes are added, x's results before y's."""
    def emit(b, x, y):
        low = [group + i for group in range(0, 16, 2 * width) for i in range(width)]
        return b.add(b.shuffle_vector(x, y, lane_mask(low)), b.shuffle_vector(x, y, lane_mask(i + width for i in low)))
    return operation(i32x8, [i32x8, i32x8], emit)


fold_4, fold_2, fold_1 = _fold(4), _fold(2), _fold(1)  # after all three, eight vectors have become their eight sums


def _sum_in_order(b, total, x):
    """total + x[0] + x[1] + … one after the other."""
    name = "llvm.vector.reduce.fadd.v8f32"
    return b.call(declare(b, name, ir.FunctionType(F32, [F32, _ir_vector(f32x8)])), [total, x])


def _pack(b, *scalars):
    out = ir.Constant(ir.VectorType(scalars[0].type, len(scalars)), ir.Undefined)
    for i, value in enumerate(scalars):
        out = b.insert_element(out, value, ir.Constant(I32, i))
    return out


sum_in_order = operation(types.float32, [types.float32, f32x8], _sum_in_order)
pack_f32x8 = operation(f32x8, [types.float32] * 8, _pack)
halves_i32x8 = operation(  # x in lanes 0..3, y in lanes 4..7
    i32x8, [types.int32, types.int32], lambda b, x, y: _pack(b, x, x, x, x, y, y, y, y))


def _fold_f32(width: int):
    """As `_fold`, for sixteen f32 lanes: fold_f32_8, then 4, 2 and 1 give sixteen vectors' sums in the order of `_tree`."""
    def emit(b, x, y):
        low = [group + i for group in range(0, 32, 2 * width) for i in range(width)]
        return b.fadd(b.shuffle_vector(x, y, lane_mask(low)), b.shuffle_vector(x, y, lane_mask(i + width for i in low)))
    return operation(f32x16, [f32x16, f32x16], emit)


fold_f32_8, fold_f32_4, fold_f32_2, fold_f32_1 = (_fold_f32(width) for width in (8, 4, 2, 1))


def _tree(combine):
    """Reduce sixteen f32 lanes by halves: (i, i+8), then (i, i+4), (i, i+2), (i, i+1)."""
    def emit(b, x):
        for width in (8, 4, 2, 1):
            low = b.shuffle_vector(x, x, lane_mask(range(width)))
            high = b.shuffle_vector(x, x, lane_mask(range(width, 2 * width)))
            x = combine(b, low, high)
        return b.extract_element(x, ir.Constant(I32, 0))
    return operation(types.float32, [f32x16], emit)


def _max(b, x, y):
    return b.select(b.fcmp_ordered(">", x, y), x, y)


sqrt_f32 = operation(types.float32, [types.float32], lambda b, x: b.call(
    declare(b, "llvm.sqrt.f32", ir.FunctionType(F32, [F32])), [x]))
first_f32 = operation(types.float32, [f32x16], lambda b, x: b.extract_element(x, ir.Constant(I32, 0)))
sum_f32x16 = _tree(lambda b, x, y: b.fadd(x, y))
max_f32x16 = _tree(_max)
max_f32 = operation(f32x16, [f32x16, f32x16], _max)


def _round_to_bytes(b, address, x):
    """Store sixteen f32, rounded half to even and held within -128..127, as int8; returns the sum of the integers."""
    kind, ints = _ir_vector(f32x16), _ir_vector(i32x16)
    magic = ir.Constant(kind, [12582912.0] * 16)  # 1.5 * 2**23
    whole = b.fptosi(b.fsub(b.fadd(x, magic), magic), ints)
    top = ir.Constant(ints, [127] * 16)
    whole = b.select(b.icmp_signed(">", whole, top), top, whole)
    b.store(b.trunc(whole, ir.VectorType(I8, 16)), pointer(b, address, ir.VectorType(I8, 16)), align=1)
    function = declare(b, "llvm.vector.reduce.add.v16i32", ir.FunctionType(I32, [ints]))
    return b.call(function, [whole])


round_to_bytes = operation(types.int32, [types.int64, f32x16], _round_to_bytes)


def _transpose(b, source, row_bytes, target):
    """16 rows of 64 bytes at `source` as 16 columns of 4-byte units: target[unit][row]."""
    kind = ir.VectorType(I32, 16)
    rows = [b.load(pointer(b, b.add(source, b.mul(row_bytes, ir.Constant(I64, r))), kind), align=1) for r in range(16)]
    for width in (1, 2, 4, 8):  # swap the off-diagonal blocks of `width` lanes between rows r and r + width
        low, high = [], []
        for lane in range(16):
            up = lane // width % 2
            low.append(16 + lane - width if up else lane)
            high.append(16 + lane if up else lane + width)
        swapped = list(rows)
        for r in range(16):
            if r // width % 2 == 0:
                x, y = rows[r], rows[r + width]
                swapped[r] = b.shuffle_vector(x, y, lane_mask(low))
                swapped[r + width] = b.shuffle_vector(x, y, lane_mask(high))
        rows = swapped
    for r in range(16):
        b.store(rows[r], pointer(b, b.add(target, ir.Constant(I64, 64 * r)), kind), align=1)


transpose_16x16 = operation(types.void, [types.int64, types.int64, types.int64], _transpose)


def _half(b, address):
    """f16 at an address as f32: the conversion instruction, or the same by integer arithmetic."""
    raw = b.load(pointer(b, address, I16), align=1)
    if isa.tier() != "plain":
        return b.fpext(b.bitcast(raw, ir.HalfType()), F32)
    return half_bits(b, b.zext(raw, I32), I32, F32)


def half_bits(b, raw, ints, floats):
    """The bits of f16 values, in integers of 32 bits, as f32: by integer arithmetic and one exact product."""
    def c(value):
        return ir.Constant(ints, value if isinstance(ints, ir.IntType) else [value] * ints.count)
    magnitude = b.shl(b.and_(raw, c(0x7FFF)), c(13))
    scale = 2.0**112
    value = b.fmul(b.bitcast(magnitude, floats),
                   ir.Constant(floats, scale if isinstance(floats, ir.FloatType) else [scale] * floats.count))
    special = b.icmp_unsigned(">=", magnitude, c(0x7C00 << 13))
    bits = b.select(special, b.or_(magnitude, c(0x7F800000)), b.bitcast(value, ints))
    return b.bitcast(b.or_(bits, b.shl(b.and_(raw, c(0x8000)), c(16))), floats)


def _half_vector(b, address):
    raw = b.load(pointer(b, address, ir.VectorType(I16, 16)), align=1)
    if isa.tier() != "plain":
        return b.fpext(b.bitcast(raw, ir.VectorType(ir.HalfType(), 16)), _ir_vector(f32x16))
    return half_bits(b, b.zext(raw, _ir_vector(i32x16)), _ir_vector(i32x16), _ir_vector(f32x16))


def _bfloat_vector(b, address):
    raw = b.load(pointer(b, address, ir.VectorType(I16, 16)), align=1)
    wide = b.shl(b.zext(raw, _ir_vector(i32x16)), ir.Constant(_ir_vector(i32x16), [16] * 16))
    return b.bitcast(wide, _ir_vector(f32x16))


load_f16 = operation(types.float32, [types.int64], _half)
load_f16x16 = operation(f32x16, [types.int64], _half_vector)
load_bf16x16 = operation(f32x16, [types.int64], _bfloat_vector)


def _prefetch(b, address):
    byte = I8.as_pointer()
    function = declare(b, "llvm.prefetch.p0", ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32]))
    b.call(function, [b.inttoptr(address, byte), *(ir.Constant(I32, v) for v in (0, 3, 1))])


prefetch = operation(types.void, [types.int64], _prefetch)


# --- exp ----------------------------------------------------------------------------------------------------------
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # Cody and Waite's split: n * high is exact for |n| < 2**9
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def _exp(b, x):
    """e**x to 2 ulp in one fixed order of f32 operations; 0 below -87.3, infinity above 88.7, NaN stays NaN."""
    kind, ints = _ir_vector(f32x16), _ir_vector(i32x16)

    def f(value):
        return ir.Constant(kind, [value] * 16)

    clipped = b.select(b.fcmp_ordered("<", x, f(-87.336)), f(-87.336), x)
    clipped = b.select(b.fcmp_ordered(">", clipped, f(88.72)), f(88.72), clipped)
    magic = f(12582912.0)  # 1.5 * 2**23: adding it rounds to an integer, half to even
    n = b.fsub(b.fadd(b.fmul(clipped, f(1.4426950408889634)), magic), magic)
    r = b.fsub(b.fsub(clipped, b.fmul(n, f(_LN2_HIGH))), b.fmul(n, f(_LN2_LOW)))
    p = f(_EXP[0])
    for coefficient in _EXP[1:]:
        p = b.fadd(b.fmul(p, r), f(coefficient))
    p = b.fadd(b.fadd(b.fmul(b.fmul(p, r), r), r), f(1.0))
    # 2**n in two factors, so that n = 128 and n = -126 both stay in range
    n_int = b.fptosi(b.select(b.fcmp_unordered("uno", n, n), f(0.0), n), ints)
    half = b.ashr(n_int, ir.Constant(ints, [1] * 16))
    rest = b.sub(n_int, half)

    def power(k):
        return b.bitcast(b.shl(b.add(k, ir.Constant(ints, [127] * 16)), ir.Constant(ints, [23] * 16)), kind)

    value = b.fmul(b.fmul(p, power(half)), power(rest))
    value = b.select(b.fcmp_ordered("<", x, f(-87.336)), f(0.0), value)
    value = b.select(b.fcmp_ordered(">", x, f(88.72)), f(float("inf")), value)
    return b.select(b.fcmp_unordered("uno", x, x), x, value)


exp_f32x16 = operation(f32x16, [f32x16], _exp)

"""Memory that threads share without the GIL: atomic counters and words, the spin-loop hint, calls by address."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from engine.backend.cpu import simd


def _atomic_add(element, numba_type):
    def emit(b, p, value):
        return b.atomic_rmw("add", simd.pointer(b, p, element), value, "seq_cst")
    return simd.operation(numba_type, [types.int64, numba_type], emit)


atomic_add_i64, atomic_add_i32 = _atomic_add(simd.I64, types.int64), _atomic_add(simd.I32, types.int32)
atomic_load_i32 = simd.operation(
    types.int32, [types.int64], lambda b, p: b.load_atomic(simd.pointer(b, p, simd.I32), "seq_cst", 4))


def _atomic_store(b, p, value):
    b.store_atomic(value, simd.pointer(b, p, simd.I32), "seq_cst", 4)


atomic_store_i32 = simd.operation(types.void, [types.int64, types.int32], _atomic_store)


@intrinsic
def pause(typing):
    """Tell the core that this is a spin loop."""
    def code(context, builder, signature, values):
        builder.call(simd.declare(builder, "llvm.x86.sse2.pause", ir.FunctionType(ir.VoidType(), [])), [])
        return context.get_dummy_value()
    return types.void(), code


@intrinsic
def call_kernel(typing, function, arguments, window, counter, worker):
    """Call the machine code at `function`: void (int64 arguments, int64 window, int64 counter, int64 worker)."""
    def code(context, builder, signature, values):
        kind = ir.FunctionType(ir.VoidType(), [simd.I64] * 4)
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])
        return context.get_dummy_value()
    return types.void(*[types.int64] * 5), code

"""How a kernel is declared, specialised and compiled.

A kernel is a function of four addresses and numbers (arguments, window, counter, worker) without a result: `arguments` is a
row of int64 slots that the recorder filled, `window` describes the tokens being run, `counter` is the shared work counter.
"""

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

from numba import cfunc, njit

from engine.backend.cpu import atomics, simd

# slots of the window block, int64 each
WINDOW_ROWS = 0  # tokens in the window, T
WINDOW_POSITION = 1  # absolute position of its first token
WINDOW_OUT_FIRST, WINDOW_OUT_ROWS = 2, 3  # rows whose logits are wanted
WINDOW_SLOTS = 8


@njit(error_model="numpy")
def slot(arguments, index):
    """The int64 in one slot."""
    return simd.load_i64(arguments + 8 * index)


@njit(error_model="numpy")
def float_slot(arguments, index):
    """A float32 kept in one slot (see `float_bits`)."""
    return simd.load_f32(arguments + 8 * index)


@njit(error_model="numpy")
def take(counter):
    """The next piece of work that no other worker has taken."""
    return atomics.atomic_add_i64(counter, 1)


def specialise(function: Callable, suffix: str, **constants: Any) -> Callable:
    """A copy of a function that sees `constants` as globals, so numba compiles them in.

    Not a closure: numba's disk cache cannot key one that holds other compiled functions.
    """
    copy = FunctionType(function.__code__, {**function.__globals__, **constants}, f"{function.__name__}_{suffix}",
                        function.__defaults__)
    copy.__qualname__, copy.__module__ = copy.__name__, function.__module__
    return copy


@cache
def compile_kernel(function: Callable) -> Any:
    """The compiled kernel; `.address` is its entry point. Compiled once a process, cached on disk."""
    return cfunc("void(int64, int64, int64, int64)", cache=True, error_model="numpy")(function)

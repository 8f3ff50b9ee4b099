"""Products and rows of weights between two pages that nobody may touch: guarded_weights.py FORMAT …

A read outside the weights ends the process; the last line printed says where it was.
"""

import ctypes
import mmap
import os
import sys
from dataclasses import replace

import numpy as np
from products import ROWS, TOKENS, Product, columns_of, embedded, random_inputs, random_weight

from engine.gguf import Tensor

PAGE = mmap.PAGESIZE
PROT_NONE = 0
_libc = ctypes.CDLL(None, use_errno=True)


def guarded(tensor: Tensor, *, at_end: bool) -> Tensor:
    """The same tensor where its last (or first) byte borders on a page without access."""
    n_bytes = tensor.data.nbytes
    pages = -(-n_bytes // PAGE)
    raw = np.frombuffer(mmap.mmap(-1, (pages + 2) * PAGE), np.uint8)
    for address in (raw.ctypes.data, raw.ctypes.data + (pages + 1) * PAGE):
        if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), PROT_NONE):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    start = PAGE + (pages * PAGE - n_bytes if at_end else 0)
    data = raw[start:start + n_bytes]
    data[:] = tensor.data.reshape(-1)
    return replace(tensor, data=data.reshape(tensor.data.shape))


def main(names: list[str]) -> None:
    for name in names:
        columns = columns_of(name)
        x = random_inputs(columns)
        routes = np.stack([np.full(TOKENS, 2), np.zeros(TOKENS, int)], axis=1)  # the last expert and the first
        for at_end in (True, False):
            print(name, "end" if at_end else "start", flush=True)
            with Product(guarded(random_weight(name, ROWS, columns), at_end=at_end)) as product:
                for n in (1, 3, TOKENS):
                    product.run(x[:n])
            with Product(guarded(random_weight(name, 3, ROWS, columns), at_end=at_end), used=2) as product:
                for n in (1, TOKENS):
                    product.run(x[:n], routes=routes[:n])
            embedded(guarded(random_weight(name, TOKENS, columns), at_end=at_end))
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

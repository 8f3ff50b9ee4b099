"""CPU backend: numba kernels that read quantized blocks where they lie in the file, run by a pool without the GIL."""

"""The blocks of backend.base, each composed of kernels."""

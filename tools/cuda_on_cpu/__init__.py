"""Runs the CUDA kernels on the processor, for tests: no card is needed to say what they compute."""

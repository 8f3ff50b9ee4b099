"""The CUDA backend: a model recorded as a list of launches, captured as one graph for every window size."""

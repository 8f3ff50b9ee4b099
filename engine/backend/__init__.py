"""Backends: the blocks a model file is written in, on one kind of processor each."""

"""Launches for a chunk of a prompt: many tokens at once, on tensor cores."""

"""Packs: what is derived once from a model's files and kept beside them. Imports nothing, so that it costs nothing."""

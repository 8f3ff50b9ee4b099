"""The engine between its pipes, on a session without a model."""

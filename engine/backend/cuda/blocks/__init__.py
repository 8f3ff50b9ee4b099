"""The blocks of backend.base as recorded operations, each with its launches for a window of tokens."""

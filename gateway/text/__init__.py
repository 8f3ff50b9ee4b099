"""Text to token ids and back, and stop strings. Pure: no I/O, no event loop."""

"""The state of a sequence: what is kept, cut and restored."""

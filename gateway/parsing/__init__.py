"""Machines that read a model's reply as it comes: feed a piece, get what is certain, finish. Pure."""

"""Bytes that the ranks of a training send, and their effect on the model: `make bench-ranks`."""

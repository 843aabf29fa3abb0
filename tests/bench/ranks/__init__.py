"""Bytes that several ranks send, and their effect on the model: `make bench-ranks`."""

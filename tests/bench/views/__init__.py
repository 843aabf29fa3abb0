"""Measure the commands that show a run: `make bench-views`."""

"""Benches of the number of trials that an optimiser needs: `make bench-optimizer`."""

"""How few trials an optimiser needs: `make bench-optimizer`."""

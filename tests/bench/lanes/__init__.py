"""Many jobs at once, each of which trains one trial after another: `make bench-lanes`."""

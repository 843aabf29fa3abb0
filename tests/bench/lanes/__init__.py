"""Many jobs at once that train one trial after another: `make bench-lanes`."""

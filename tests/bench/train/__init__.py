"""The reference trainer against simpler ways and the hardware's limits: `make bench-train`."""

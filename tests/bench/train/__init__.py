"""The reference trainer against plainer ways and the hardware's limits: `make bench-train`."""

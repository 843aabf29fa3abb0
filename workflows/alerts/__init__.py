"""Which events a run has, and the process that looks for them while it goes on."""

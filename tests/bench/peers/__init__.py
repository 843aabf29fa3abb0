"""The same tuning by trialfleet and by other systems: `make bench-peers`."""

"""The same tuning by trialfleet and by its peers: `make bench-peers`."""

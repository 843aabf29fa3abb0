"""What the commands cost that show a run: `make bench-views`."""

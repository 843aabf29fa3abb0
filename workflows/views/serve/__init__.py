"""The read-only page: runs, regions, trials and nodes in a browser."""

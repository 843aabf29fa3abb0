"""The read-only pages of `trialfleet serve`: runs, regions, trials and nodes in a browser."""

"""The read-only pages of `trialfleet serve`, which show runs, regions and trials in a browser."""

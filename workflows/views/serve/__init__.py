"""The page: the state of runs, regions, trials and nodes in a browser. It is read-only."""

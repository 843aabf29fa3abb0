"""The page: where runs, regions, trials and nodes stand, in a browser. It can change nothing."""

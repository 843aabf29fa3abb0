"""A run in HTCondor: its DAGMans and jobs, what keeps them from going on, and the mending."""

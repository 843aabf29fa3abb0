"""Repair of a run's parts in HTCondor: its DAGMans, its jobs and its other processes."""

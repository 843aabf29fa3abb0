"""Repair of what belongs to a run in HTCondor: its DAGMans, its jobs and its other processes."""

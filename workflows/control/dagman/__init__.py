"""Repair of a run in HTCondor: of its DAGMans, its jobs and its other processes."""

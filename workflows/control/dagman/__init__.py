"""Repairs of a run in HTCondor: of its DAGMans, of its jobs and of its other processes."""

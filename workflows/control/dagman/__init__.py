"""Repairs of a run in HTCondor: its DAGMans, its jobs and the processes beside them."""

"""HTCondor's side of a fleet: its nodes in the pool, and the jobs in the queue."""

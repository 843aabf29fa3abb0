"""Facts about a run from HTCondor: its queued jobs, its DAGMans' files, and the pool's slots."""

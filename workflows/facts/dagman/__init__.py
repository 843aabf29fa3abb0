"""HTCondor's facts about a run: its jobs in the queue, its DAGMans' files, and the pool's slots."""

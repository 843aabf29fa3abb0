"""HTCondor's facts about a run: its queue, its DAGMans' files, the slots of the pool."""

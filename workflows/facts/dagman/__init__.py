"""What HTCondor knows of a run: its queue, its DAGMans' files, the slots of the pool."""

"""One training over several machines: a gang of ordinary jobs of one DAG node.

Its submit file ends in `queue MAX`. Each job runs `nodes/gang/agent.py`; the agents never talk to
each other. Each writes its messages by chirp into the node's folder, `words/gang/agent.PROC`.
`keeper.py`, a process on the access point, reads that and the queue, and writes
`words/gang/roster.json`, which they read by chirp. `rules/gang_decision.py` decides its content.
With the run's optimiser the keeper speaks as the agent of a job by itself does (`speaker.py`).

A gang lives in generations. In one, the ranks, their addresses and the checkpoint to start from are
fixed. Each agent that joins, leaves or is lost starts another:

    form g    the workers of generation g - 1 end, rank 0 saving first where it can; an agent
              without workers says that it is ready for g
    run g     all that have a slot are ready, `min` of them at least: members by rank
    done      there is nothing left to train: every agent leaves
"""

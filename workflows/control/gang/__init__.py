"""Gangs: the jobs of one DAG node that train one model together on several machines.

The submit file of a gang ends in `queue MAX`. Each job runs `nodes/gang/agent.py`. The agents don't
talk to each other. Each agent writes its messages by chirp to `words/gang/agent.PROC` in the DAG
node's folder. `keeper.py`, a process on the access point, reads these files and the queue, and
writes `words/gang/roster.json`, which the agents read by chirp. `rules/gang_decision.py` decides
the content of the roster. The keeper also talks to the run's optimiser, with the messages that the
agent of a job outside a gang would send (`speaker.py`).

A gang passes through generations. In a generation the ranks, their addresses and the checkpoint to
start from are fixed. When an agent joins, leaves or is lost, the next generation starts:

    form g    the workers of generation g - 1 end, and rank 0 saves a checkpoint first if it can;
              an agent without workers reports that it is ready for g
    run g     all jobs with a slot, at least `min`, are ready; they are the members, by rank
    done      nothing is left to train: every agent ends
"""

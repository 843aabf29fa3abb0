"""Gangs: the jobs of one DAG node that train one model together on several machines.

A gang's submit file ends in `queue MAX`, where MAX is the gang's maximum number of jobs. Each job
runs an agent, `nodes/gang/agent.py`. Agents don't talk to each other. Each agent writes messages by
chirp to `words/gang/agent.PROC` in the DAG node's folder, where PROC is the job's number, from 0
on. On the access point, `keeper.py` reads these files and the queue, and writes the roster
`words/gang/roster.json`, which lists the gang's ranks. `rules/gang_decision.py` decides what the
roster contains. The agents read the roster by chirp. To the optimiser's service, `speaker.py` sends
the same messages as the agent of a single job.

A gang passes through generations. During a generation, the ranks, their addresses and the
checkpoint to start from are fixed. When an agent joins, leaves or is lost, the next generation
starts. The roster's states for a generation g are:

    form g    the workers (training processes) of generation g - 1 end; rank 0 first saves a
              checkpoint if it can; an agent without workers reports that it is ready for g
    run g     all jobs with a slot (at least `min` jobs) were ready; each job got a rank and trains
    done      nothing is left to train: every agent ends
"""

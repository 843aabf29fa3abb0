"""The answers of `trialfleet why`: reasons for states of runs, regions, nodes, jobs, instances."""

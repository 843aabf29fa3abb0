"""Actions on runs: plan, submit, answer DAGMan's scripts, repair, stop, publish, send alerts."""

"""Actions on runs: plan, submit, answer the scripts, repair, stop, publish, send alerts."""

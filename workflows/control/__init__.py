"""Actions on runs: plan, submit, answer scripts, repair, stop, publish, notify."""

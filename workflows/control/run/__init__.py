"""Actions on one run: plan, check, submit, watch, stop, resume."""

"""The autoscaler: the decision, its limits and its money, back-off, draining, the process."""

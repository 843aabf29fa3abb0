"""The autoscaler: its decision, limits, costs, back-off and draining, and its process."""

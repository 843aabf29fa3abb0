"""Two managers that share a study: the lease on its days, and copies of each other's results."""

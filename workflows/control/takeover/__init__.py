"""Two managers that share a study: the lease on its days, and the results of the other manager."""

"""Two managers of one study: the lease on its days, and the other's results."""

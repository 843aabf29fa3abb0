"""A fleet's instances: launches, listings, leases, and calls for many instances at once."""

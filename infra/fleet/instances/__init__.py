"""A fleet's EC2 instances: launches, listings, leases, and calls for many instances at once."""

"""The costs of a fleet of a thousand nodes (EC2 instances) for its manager."""

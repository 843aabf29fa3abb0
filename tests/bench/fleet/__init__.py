"""Costs of a fleet of a thousand nodes for its manager."""

"""The choice of instances by their types, prices, quotas and history."""

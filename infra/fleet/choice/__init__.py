"""The choice of instances: types, prices, quotas and history, the best first."""

"""A run's records and storage: what was noted of its regions, its money and its failures."""

"""A run's records and storage: its regions, its money and its failures."""

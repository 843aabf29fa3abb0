"""The names in a run's folder, and its graph."""

"""The names in a run's folder, and the graph that it holds."""

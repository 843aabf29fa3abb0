"""From a study to a run's folder: the graph, the folder's names, what the pool makes of it."""

"""The names of the files in a run's folder, and the run's graph of jobs."""

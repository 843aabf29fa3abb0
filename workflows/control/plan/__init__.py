"""Planning, which writes a run's folder before the run starts."""

"""Planning, which writes a run's folder. Settings that the study leaves out depend on the pool."""

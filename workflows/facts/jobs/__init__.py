"""Facts about a run's jobs: their event logs, their agents' messages, and their costs."""

"""Facts about a run's jobs: their event logs, the messages of their agents, and their costs."""

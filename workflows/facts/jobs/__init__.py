"""Facts about a run's jobs: event logs, agents' messages, and costs of slots."""

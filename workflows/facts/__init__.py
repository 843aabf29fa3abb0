"""Modules that read facts about runs and decide nothing. Each fact is read by one module only."""

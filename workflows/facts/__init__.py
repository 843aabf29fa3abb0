"""Readers of facts about runs, which decide nothing. Each fact is read by one module only."""

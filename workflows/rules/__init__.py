"""Decisions about runs, as pure functions of facts. Each decision is made by one module only."""

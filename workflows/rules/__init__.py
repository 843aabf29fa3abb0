"""Decisions about runs, each in one place: pure functions of facts."""

"""Runs, trials, models, days and costs as tables of a terminal."""

"""Alerts about events of runs and days: their detection, and their sending to channels."""

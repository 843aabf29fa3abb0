"""Alerts about events of runs and days: how events are found, and how alerts are sent."""

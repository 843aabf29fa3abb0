"""The outcomes of a study's days and regions, and the events for its alerts."""

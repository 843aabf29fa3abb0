"""The outcomes of regions on a study's days, and the events for the study's alerts."""

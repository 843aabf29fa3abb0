"""The daily runs of a study: schedule, journal, and the work of a day."""

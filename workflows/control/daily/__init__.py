"""The daily runs of a study: their schedule, their journal, and the work of a day."""

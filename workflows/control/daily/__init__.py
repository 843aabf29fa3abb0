"""Each day's run of a study: its clock, its journal, and what is done on a day."""

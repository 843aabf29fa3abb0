"""Facts about runs: their names, records, trial databases, costs and failures."""

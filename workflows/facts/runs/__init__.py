"""Facts about runs: their names, records, storage, costs and failures."""

"""Facts about runs: frozen values without judgement. Each fact is read by one module only."""

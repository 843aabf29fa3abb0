"""Facts about runs, each read in one place: frozen values without judgement."""

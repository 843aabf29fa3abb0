"""What is known of runs, read in one place each: frozen values of one shape, and no judgement."""

"""A first study: what `trialfleet init` writes."""

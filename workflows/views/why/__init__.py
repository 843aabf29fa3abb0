"""`trialfleet why`: the reason for the state of a run, region, node, job or instance."""

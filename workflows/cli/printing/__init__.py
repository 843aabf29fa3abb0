"""The printed views of commands: plans, fleets, trials."""

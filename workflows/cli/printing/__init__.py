"""What commands print: plans, fleets, trials."""

"""What commands print: plans of runs, fleets, pools, and trials as CSV."""

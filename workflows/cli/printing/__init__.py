"""The output of commands: views of planned runs, fleets and pools, and results as CSV."""

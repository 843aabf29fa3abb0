"""The output of commands: tables about planned runs, fleets and pools, and results as CSV."""

"""The bill of runs: what their jobs cost by logs and studies, and what their fleets' nodes did."""

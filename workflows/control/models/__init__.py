"""The published models of a region: choice of the current one, retention, predictions."""

"""The published models of a region: publication, current one, rollback, retention, predictions."""

"""The models of a region: where they lie, which one is in force, predictions with them."""

"""The models of a region: which one is put in force, which stay, predictions with them."""

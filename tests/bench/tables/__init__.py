"""The reference trainer beside LightGBM and scikit-learn's network, on the same frozen rows."""

"""The reference trainer against LightGBM and scikit-learn's network, on the same rows."""

"""Which parameters are tried next: start-up, our Gaussian process, samplers of Optuna."""

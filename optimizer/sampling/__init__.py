"""The choice of the next parameters: start-up trials, our Gaussian process, Optuna's samplers."""

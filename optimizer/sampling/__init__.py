"""The choice of a trial's parameters: start-up trials, Gaussian process, Optuna's samplers."""

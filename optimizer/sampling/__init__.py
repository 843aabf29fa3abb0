"""The choice of next parameters by start-up trials, our Gaussian process or Optuna's samplers."""

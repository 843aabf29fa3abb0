"""The choice of a trial's parameters, by a Gaussian process or by one of Optuna's samplers."""

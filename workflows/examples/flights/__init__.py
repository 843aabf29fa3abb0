"""Prediction of late flights: the example of `make demo`."""

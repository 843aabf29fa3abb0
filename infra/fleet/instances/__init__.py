"""A fleet's instances: launched, listed, leased, called upon many at once."""

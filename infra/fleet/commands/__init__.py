"""The actions behind the `trialfleet fleet` commands: plan, status, scale, doctor and others."""

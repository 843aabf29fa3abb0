"""The commands on a fleet: plan, status, scale, doctor, bake and others."""

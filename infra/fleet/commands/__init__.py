"""What people ask of a fleet: plan, status, scale, doctor, bake."""

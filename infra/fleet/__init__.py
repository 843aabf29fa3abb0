"""EC2 instances as execution points of an HTCondor pool: made, watched, scaled, removed."""

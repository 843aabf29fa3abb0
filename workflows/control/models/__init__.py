"""A region's published models: how they are published, made current, rolled back and removed."""

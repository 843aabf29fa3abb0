"""A program per system: tunes all regions in a folder; goes on when it is started again."""

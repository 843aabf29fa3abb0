"""A program per system: tunes all regions in a folder, and continues if started again."""

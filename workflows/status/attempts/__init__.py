"""Attempts at a trial: what became of one, whose fault it was, and whether there is another."""

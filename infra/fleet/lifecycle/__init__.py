"""Making a fleet and removing it: each may be killed anywhere and done again."""

"""The specification of a fleet: the `fleet:` table, resource names, and machines as plain data."""

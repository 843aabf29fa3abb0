"""What a fleet is: the `fleet:` table, its names, and machines as plain data."""

"""boto3's clients, and a module per kind of thing that a fleet makes with them."""

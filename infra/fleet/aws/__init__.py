"""boto3's clients, and a module per kind of resource that a fleet makes with them."""

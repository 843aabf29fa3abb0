"""boto3's clients, and one module for each kind of AWS resource that a fleet creates."""

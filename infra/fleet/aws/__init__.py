"""boto3's clients, and one module for each kind of AWS resource that a fleet creates.

Some functions that only look up resources, such as `network.groups`, raise botocore's ClientError.
Their callers turn this error into a FleetError with `clients.asking`.
"""

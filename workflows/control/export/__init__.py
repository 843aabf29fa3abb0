"""Copies of what was published, elsewhere: S3 and MLflow follow the publish folder, behind it."""

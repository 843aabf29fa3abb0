"""Exports of published models: copies in S3 and MLflow that match the publish folder."""

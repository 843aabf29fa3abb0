"""Exports of published models: S3 and MLflow follow the publish folder."""

"""Exports of published models: copies of the publish folder in S3, and models in MLflow."""

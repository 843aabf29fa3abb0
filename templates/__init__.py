"""Jinja templates: DAG files, submit files, HTCondor configuration, the report, a first study."""

"""Workflows: study, graph, rendering, submission, status, report and command line."""

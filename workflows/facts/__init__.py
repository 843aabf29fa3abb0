"""Modules that read facts about runs and decide nothing. Only one module reads each fact."""

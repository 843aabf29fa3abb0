"""The command line: a module for each group of commands, and modules for their output."""

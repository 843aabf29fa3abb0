"""The pool's view of a fleet: its nodes' ads, and what the job queue waits for."""

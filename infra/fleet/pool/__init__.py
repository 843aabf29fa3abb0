"""The pool's view of a fleet: its nodes' ads and the demand in the job queue."""

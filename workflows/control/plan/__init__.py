"""Planning: from a study to a run's folder. The pool decides what the study leaves open."""

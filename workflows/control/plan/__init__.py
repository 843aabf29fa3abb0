"""Planning: from a study to a run's folder. The pool decides settings that the study leaves out."""

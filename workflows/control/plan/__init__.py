"""Planning: from a study to a run's folder, with the choices that the pool decides."""

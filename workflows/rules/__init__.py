"""What is decided about runs, each thing in one place: pure functions of facts."""

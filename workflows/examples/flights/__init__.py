"""Will a flight arrive late? The example that `make demo` runs."""

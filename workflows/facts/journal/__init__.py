"""Facts about a study's daily runs: each region's outcome on each day, and events for alerts."""

"""What several ranks send, and what that does to the model: `make bench-ranks`."""

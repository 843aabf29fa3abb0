"""What a fleet of a thousand nodes costs its manager."""

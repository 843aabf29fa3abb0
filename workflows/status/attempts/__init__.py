"""Attempts at a trial: their outcomes, who is to blame for failures, and retries."""

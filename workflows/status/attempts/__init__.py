"""Attempts at a trial: their outcome, their fault, and retries."""

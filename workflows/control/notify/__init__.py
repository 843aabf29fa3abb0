"""Telling people of events: the outbox that keeps them, and the channels by which they leave it."""

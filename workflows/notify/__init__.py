"""Telling people of events: the outbox that keeps them, and the ways by which they leave it."""

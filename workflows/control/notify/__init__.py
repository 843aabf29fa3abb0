"""Alerts: the outbox that stores events, and the channels that send them."""

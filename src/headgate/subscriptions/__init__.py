"""Subscriptions: events that consumers pull, acknowledge and seek."""

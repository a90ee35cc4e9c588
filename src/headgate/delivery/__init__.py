"""Delivery to subscribers: attempts, retries, order and limits for each target."""

"""Brokers, triggers, subscriptions and namespaces: their API, store, conditions and generations."""

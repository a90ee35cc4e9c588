"""Who wants what? Brokers, triggers, their store, conditions and generations."""

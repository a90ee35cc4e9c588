"""The outbox: matches made durable, between the matcher and delivery."""

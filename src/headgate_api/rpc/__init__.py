"""The gRPC contract between Headgate and its clients: messages, events in them, errors."""

"""CloudEvents: the model, and its HTTP and JSON forms. Pure."""

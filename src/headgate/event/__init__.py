"""CloudEvents: the model, its HTTP and JSON forms, its Arrow schema. Pure."""

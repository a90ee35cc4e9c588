"""What is an event? The model, its HTTP and JSON forms, its Arrow schema. Pure."""

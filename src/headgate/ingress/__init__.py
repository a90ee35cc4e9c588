"""May this event come in? HTTP entry, admission limits."""

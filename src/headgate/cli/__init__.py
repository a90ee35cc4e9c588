"""How does a person use it? The headgate command."""

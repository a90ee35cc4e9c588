"""Dead letters: events that nobody took, kept and sent to their sinks."""

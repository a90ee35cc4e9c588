"""Is this event wanted? Dialects to CEL, CEL to plan rows, evaluation. Pure."""

"""Filters: dialects to CEL, CEL to plan rows, evaluation by cel-cpp. Pure."""

"""Tools for people and readers: explain, trace, advice, union."""

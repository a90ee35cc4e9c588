"""How may a filter be written? One file a dialect; each gives CEL text."""

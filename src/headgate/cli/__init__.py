"""The `headgate` command."""

"""Programs for who works on Headgate."""

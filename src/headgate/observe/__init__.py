"""What is going on? Metrics and logs."""

"""What happened since? The log read by consumers, with filters."""

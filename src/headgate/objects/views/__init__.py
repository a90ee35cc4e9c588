"""What processes keep of the objects in memory."""

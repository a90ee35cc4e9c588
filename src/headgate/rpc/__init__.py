"""What do Headgate and its clients say to each other over gRPC? The messages, and events in them."""

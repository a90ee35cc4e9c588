"""Reading the log: broker streams over HTTP and gRPC, with filters."""

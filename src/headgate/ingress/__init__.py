"""The entry for events over HTTP and gRPC, and its limits."""

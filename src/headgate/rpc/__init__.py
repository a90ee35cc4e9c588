"""The server's side of the gRPC contract: the frame of its handlers, and messages read in bounded steps."""

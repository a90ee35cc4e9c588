"""What each kind of object may say and what its status means. Pure."""

"""The composition root: the supervisor and its processes."""

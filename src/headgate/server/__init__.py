"""How do the parts run together? The composition root: supervisor and its processes."""

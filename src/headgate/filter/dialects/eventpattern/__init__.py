"""Event patterns of Amazon EventBridge."""

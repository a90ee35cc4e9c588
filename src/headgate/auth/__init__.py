"""Who makes a request, and what he may do."""

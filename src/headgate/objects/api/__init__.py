"""The Kubernetes API of the objects: verbs, watches, reviews, and what a start writes."""

"""Headgate: a CloudEvents broker that evaluates every subscriber's filter on the server."""

__version__ = "0.1.0"

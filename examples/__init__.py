"""Headgate at work."""

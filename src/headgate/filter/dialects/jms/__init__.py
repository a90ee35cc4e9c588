"""Selectors of Jakarta Messaging 3.1."""

"""Conformance: checks of any broker against the Broker contract."""

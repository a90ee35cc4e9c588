"""Conformance: programs for files of public cases, and checks of any broker against the Broker contract."""

"""Programs for files of public cases: `python -m conformance SUITE FILE` (docs/reference/conformance.md)."""

"""Headgate: a CloudEvents broker that evaluates every subscriber's filter on the server."""

from typing import Final

DISTRIBUTION: Final = "headgate-broker"
"""What installers call the package with the server; that with the client alone is headgate-client."""
__version__ = "0.1.0"

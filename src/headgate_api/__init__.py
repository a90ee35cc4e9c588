"""What clients and the server both know: events, the contract of gRPC, objects of the API, limits, errors."""

from typing import Final

DISTRIBUTION: Final = "headgate-broker"
"""What installers call the package with the server; that with the client alone is headgate-client."""
__version__ = "0.1.0"

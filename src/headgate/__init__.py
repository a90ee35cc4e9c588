"""Headgate: a CloudEvents broker that evaluates every subscriber's filter on the server."""

from headgate_api import __version__ as __version__

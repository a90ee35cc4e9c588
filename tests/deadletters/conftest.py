"""The fixture `log` of this room's tests."""

from tests.delivery.harness import log

__all__ = ["log"]

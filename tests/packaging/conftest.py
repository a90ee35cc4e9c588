"""What tests of an installed server share with those of the system."""

from tests.system.conftest import subscriber

__all__ = ["subscriber"]

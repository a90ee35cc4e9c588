from __future__ import annotations

from tests.match.conftest import spark

__all__ = ["spark"]

"""The examples that properties try, and how tests are shared out to the workers of `make test`.

Properties try the same examples at every run, so that a change is judged by what it changed. `make nightly` tries new
ones (HEADGATE_EXPLORE=1). No example has a deadline: how long something takes is for benchmarks, not for tests on a
busy machine.
"""

import os
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings

from headgate.event.json_text import allow_deep_json

_EXPLORES = bool(os.environ.get("HEADGATE_EXPLORE"))
settings.register_profile(
    "headgate", deadline=None, derandomize=not _EXPLORES, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("headgate")

allow_deep_json()  # as at the start of every process of Headgate
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else its notes of closed connections mix with pytest's lines


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Keep together, on one worker, the tests that share a JVM or a server, and else those of a file."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        shared = next((name for name in ("spark", "server") if name in fixtures), str(item.path))
        item.add_marker(pytest.mark.xdist_group(shared))

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.match.driver_link import DriverLink
from tests.match.fakes import FakeDispatcher


@pytest.fixture
def dispatcher() -> Iterator[FakeDispatcher]:
    with FakeDispatcher() as fake:
        yield fake


@pytest.fixture
def link(dispatcher: FakeDispatcher) -> Iterator[DriverLink]:
    connected = DriverLink.connect(dispatcher.address)
    yield connected
    connected.close()

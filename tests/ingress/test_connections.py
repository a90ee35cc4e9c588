"""Places of connections: whose they are counted as, and that the books hold whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.auth.lockout import client_of
from headgate.ingress.http_connection import Connections, ConnectionSlot
from headgate_api import limits


class Held:
    def __init__(self) -> None:
        self.closed = False

    def evict(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "", True),
    ],
)
def test_whose_connections_are_counted_together(one: str, other: str, same: bool) -> None:
    assert (client_of(one) == client_of(other)) is same


STEPS = st.lists(st.tuples(st.sampled_from(["enter", "work", "rest", "leave"]), st.integers(0, 11)), max_size=80)


@given(steps=STEPS)
def test_the_books_hold(steps: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CONNECTIONS_MAX", 5)
        patch.setattr(limits, "CONNECTIONS_A_CLIENT_MAX", 3)
        connections, there, working = Connections(), list[ConnectionSlot](), set[ConnectionSlot]()
        for step, number in steps:
            if step == "enter":
                address = f"10.0.0.{number % 3}"
                mine = [slot for slot in there if slot.client.name == address]
                slot = connections.acquire(Held(), address)
                full = mine if len(mine) == 3 else there if len(there) == 5 else None
                if full is not None:
                    idle = [one for one in full if one not in working]
                    assert (slot is None) == (not idle)
                    closed = [one for one in there if one.connection.closed]  # type: ignore[attr-defined]
                    assert len(closed) == bool(idle)
                    assert all(one in idle for one in closed)
                    there = [one for one in there if one not in closed]
                if slot is not None:
                    there.append(slot)
            elif there:
                slot = there[number % len(there)]
                if step == "leave":
                    connections.release(slot)
                    connections.release(slot)
                    there.remove(slot)
                    working.discard(slot)
                elif step == "work":
                    connections.begin_request(slot)
                    working.add(slot)
                else:
                    connections.end_request(slot)
                    working.discard(slot)
            assert len(connections) == len(there) <= 5
        for slot in there:
            connections.release(slot)
        assert (len(connections), connections._clients, connections._idle) == (0, {}, {})

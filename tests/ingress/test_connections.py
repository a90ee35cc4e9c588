"""Places of connections: whose they are counted as, and that the books hold whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import limits
from headgate.ingress.connections import Connections, Place, client_of


class Held:
    def __init__(self) -> None:
        self.closed = False

    def give_up(self) -> None:
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
        places, there, working = Connections(), list[Place](), set[Place]()
        for step, number in steps:
            if step == "enter":
                address = f"10.0.0.{number % 3}"
                mine = [place for place in there if place.client.name == address]
                place = places.enter(Held(), address)
                full = mine if len(mine) == 3 else there if len(there) == 5 else None
                if full is not None:
                    idle = [one for one in full if one not in working]
                    assert (place is None) == (not idle)
                    closed = [one for one in there if one.connection.closed]  # type: ignore[attr-defined]
                    assert len(closed) == bool(idle)
                    assert all(one in idle for one in closed)
                    there = [one for one in there if one not in closed]
                if place is not None:
                    there.append(place)
            elif there:
                place = there[number % len(there)]
                if step == "leave":
                    places.leave(place)
                    places.leave(place)
                    there.remove(place)
                    working.discard(place)
                elif step == "work":
                    places.work(place)
                    working.add(place)
                else:
                    places.rest(place)
                    working.discard(place)
            assert len(places) == len(there) <= 5
        for place in there:
            places.leave(place)
        assert (len(places), places._clients, places._idle) == (0, {}, {})

"""Several dispatchers as one: a run counts when it counts at every one of them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.match.driver_link import DriverLink, DriverLinks, LinkAddress, Message
from headgate.match.errors import DriverLinkError
from headgate.objects.store.database import StoreCommits
from headgate.outbox.link_format import LinkEndpoint, RunActive, RunRejected
from tests.match.fakes import TOKEN, FakeDispatcher, address_of
from tests.support import eventually


@contextlib.contextmanager
def linked() -> Iterator[tuple[FakeDispatcher, FakeDispatcher, DriverLinks]]:
    with FakeDispatcher() as first, FakeDispatcher() as second:
        links = DriverLinks.connect(address_of(first, second))
        for dispatcher in (first, second):
            eventually(lambda one=dispatcher: one.driver is not None)
        yield first, second, links
        links.close()


def heard(links: DriverLinks, count: int) -> list[Message]:
    """The next messages, that many of them."""
    found: list[Message] = []
    while len(found) < count:
        found += links.receive(10)
    return found


def test_a_run_starts_at_the_lowest_offset_of_each_partition() -> None:
    with linked() as (first, second, links):

        def answer(dispatcher: FakeDispatcher, offsets: dict[str, int]) -> None:
            assert dispatcher.driver_says.get(timeout=10) == {"op": "resume"}
            dispatcher.tell_driver(op="resume", offsets=offsets)

        answers = [
            threading.Thread(target=answer, args=(first, {"0": 812, "1": 790})),
            threading.Thread(target=answer, args=(second, {"0": 900, "1": 17, "2": 5})),
        ]
        for thread in answers:
            thread.start()
        assert links.resume() == {0: 812, 1: 17, 2: 5}
        for thread in answers:
            thread.join()


def test_a_run_is_active_when_it_is_everywhere() -> None:
    with linked() as (first, second, links):
        links.started(7, 12)
        for dispatcher in (first, second):
            assert dispatcher.driver_says.get(timeout=10) == {"op": "started", "run": 7, "generation": 12}
        second.tell_driver(op="active", run=7, generation=12)
        assert links.receive(0.1) == []
        second.tell_driver(op="active", run=7, generation=12)  # the same one again is not another one
        assert links.receive(0.1) == []
        first.tell_driver(op="active", run=7, generation=12)
        assert heard(links, 1) == [RunActive(7, 12)]


def test_the_first_that_rejects_a_run_is_heard() -> None:
    with linked() as (first, second, links):
        links.started(7, 12)
        first.tell_driver(op="active", run=7, generation=12)
        second.tell_driver(op="rejected", run=7, reason="a gap")
        assert heard(links, 1) == [RunRejected(7, "a gap")]


def test_runs_of_which_nothing_was_ever_heard_are_forgotten() -> None:
    with linked() as (first, second, links):
        for run in range(1, 40):
            links.started(run, run)
        for dispatcher in (first, second):
            dispatcher.tell_driver(op="active", run=1, generation=1)
            dispatcher.tell_driver(op="active", run=39, generation=39)
        assert heard(links, 1) == [RunActive(39, 39)]


def test_one_that_is_gone_breaks_the_link() -> None:
    with linked() as (_, second, links):
        second.drop_driver()
        with pytest.raises(DriverLinkError, match="closed the match link"):
            links.receive(10)


def test_one_that_does_not_listen_leaves_no_connection_behind() -> None:
    with FakeDispatcher() as first:
        with FakeDispatcher() as second:
            address = address_of(first, second)
        with pytest.raises(DriverLinkError, match="dispatcher 1 does not listen"):
            DriverLinks.connect(address)
        link = DriverLink.connect(LinkAddress((first.endpoint,), TOKEN))
        link.close()


def test_an_address_is_shown_without_the_token() -> None:
    address = LinkAddress((LinkEndpoint("127.0.0.1", 1), LinkEndpoint("127.0.0.1", 2)), TOKEN)
    assert repr(address) == "LinkAddress(127.0.0.1:1, 127.0.0.1:2)"


def test_a_commit_to_the_store_ends_a_wait(tmp_path: Path) -> None:
    database = tmp_path / "control.db"
    database.touch()
    commits = StoreCommits(database)
    with FakeDispatcher() as dispatcher:
        links = DriverLinks.connect(address_of(dispatcher), commits)
        os.utime(database)
        began = time.monotonic()
        assert links.receive(60) == []
        assert time.monotonic() - began < 50, "it was heard"
        links.close()
    commits.close()

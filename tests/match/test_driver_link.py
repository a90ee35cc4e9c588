"""The driver connection, as its specification has it."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from headgate.match.driver_link import DriverLink, LinkAddress, read_address
from headgate.match.errors import DriverLinkError
from headgate.outbox.link_format import LinkEndpoint, RunActive, RunRejected
from tests.match.fakes import TOKEN, FakeDispatcher
from tests.support import eventually


def listen(link: DriverLink) -> None:
    while True:
        link.receive(1)


def test_resume_is_asked_and_answered(dispatcher: FakeDispatcher, link: DriverLink) -> None:
    def answer() -> None:
        assert dispatcher.driver_says.get(timeout=10) == {"op": "resume"}
        dispatcher.tell_driver(op="active", run=3, generation=9)
        dispatcher.tell_driver(op="resume", offsets={"0": 812, "1": 790})
        dispatcher.tell_driver(op="rejected", run=4, reason="a gap")

    thread = threading.Thread(target=answer)
    thread.start()
    assert link.resume() == {0: 812, 1: 790}
    thread.join()
    heard = [*link.receive(0.01)]
    while len(heard) < 2:
        heard += link.receive(1)
    assert heard == [RunActive(3, 9), RunRejected(4, "a gap")]


def test_started_is_told(dispatcher: FakeDispatcher, link: DriverLink) -> None:
    link.started(7, 12)
    assert dispatcher.driver_says.get(timeout=10) == {"op": "started", "run": 7, "generation": 12}


def test_silence_is_no_message(link: DriverLink) -> None:
    assert link.receive(0.01) == []


def test_a_line_in_two_pieces_is_one_message(dispatcher: FakeDispatcher, link: DriverLink) -> None:
    eventually(lambda: dispatcher.driver is not None)
    assert dispatcher.driver is not None
    dispatcher.driver.sendall(b'{"op":"active",')
    assert link.receive(0.05) == []
    dispatcher.driver.sendall(b'"run":1,"generation":2}\n')
    assert link.receive(10) == [RunActive(1, 2)]


@pytest.mark.parametrize("line", [b"no json\n", b'{"op":"other"}\n', b'{"op":"active","run":"x"}\n', b"x" * 70_000])
def test_nonsense_breaks_the_link(dispatcher: FakeDispatcher, link: DriverLink, line: bytes) -> None:
    eventually(lambda: dispatcher.driver is not None)
    assert dispatcher.driver is not None
    dispatcher.driver.sendall(line)
    with pytest.raises(DriverLinkError):
        listen(link)


def test_a_closed_link_is_an_error(dispatcher: FakeDispatcher, link: DriverLink) -> None:
    eventually(lambda: dispatcher.driver is not None)
    dispatcher.drop_driver()
    with pytest.raises(DriverLinkError, match="closed the match link"):
        link.receive(10)


def test_a_wrong_token_is_refused() -> None:
    with FakeDispatcher(token=bytes(32)) as dispatcher, pytest.raises(DriverLinkError, match="refused"):
        DriverLink.connect(dispatcher.address)


def test_the_address_comes_from_the_run_directory(tmp_path: Path) -> None:
    with pytest.raises(DriverLinkError):
        read_address(tmp_path, TOKEN, 2)
    for number, port in enumerate((4711, 4712)):
        with pytest.raises(DriverLinkError):
            read_address(tmp_path, TOKEN, 2)
        (tmp_path / f"match-link-{number}.json").write_text(json.dumps({"host": "127.0.0.1", "port": port}))
    address = read_address(tmp_path, TOKEN, 2)
    assert address == LinkAddress((LinkEndpoint("127.0.0.1", 4711), LinkEndpoint("127.0.0.1", 4712)), TOKEN)
    assert TOKEN.hex() not in repr(address)
    assert str(TOKEN) not in repr(address)


def test_nobody_listening_is_an_error() -> None:
    with FakeDispatcher() as dispatcher:
        address = dispatcher.address
    with pytest.raises(DriverLinkError, match="does not listen"):
        DriverLink.connect(address)

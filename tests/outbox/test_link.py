"""The match link on a real socket: who may speak, what happens to nonsense, and one run after another."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import stat
from pathlib import Path

import pytest

from headgate.outbox.link_format import HELLO_BYTES, Hello, encode_hello
from headgate_api import limits
from tests.delivery.harness import TOKEN, EventLog, Routes, Subscriber, event, matcher, run, running, target
from tests.support import until

RUN = Hello(1, 1, 0, 1, 0)


def on_link(tmp_path: Path, work) -> None:
    """Run `work(running dispatcher, log)` and see that the dispatcher still delivers in the end."""

    async def main() -> None:
        log = EventLog(tmp_path)
        async with Subscriber() as subscriber, running(tmp_path, Routes(target(1, subscriber.url))) as dispatcher:
            await work(dispatcher, log)
            offset = log.append([event(4711)])
            async with matcher(dispatcher, 1_000) as peer:
                peer.match((offset, 1))
                await until(lambda: subscriber.ids[-1:] == ["e4711"])
        log.close()

    run(main())


def test_the_address_is_published_for_the_owner_only(tmp_path: Path):
    async def work(dispatcher, log) -> None:
        path = tmp_path / "run" / "match-link-0.json"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert json.loads(path.read_text()).keys() == {"host", "port"}
        assert json.loads(path.read_text())["host"] == "127.0.0.1"

    on_link(tmp_path, work)


@pytest.mark.parametrize(
    "first",
    [
        encode_hello(RUN, bytes(32)),
        encode_hello(RUN, TOKEN[:-1] + b"x"),
        b"HGM2" + encode_hello(RUN, TOKEN)[4:],
        encode_hello(Hello(1, 1, 0, 1, 0, 1, 2), TOKEN),  # of another dispatcher
        encode_hello(Hello(0, 0, -1, 0, 0, 0, 2), TOKEN),
        b"GET / HTTP/1.1\r\nhost: localhost\r\n" + bytes(HELLO_BYTES),
    ],
)
def test_strangers_are_closed_without_an_answer(tmp_path: Path, first: bytes):
    async def work(dispatcher, log) -> None:
        async with dispatcher.peer() as peer:
            peer.writer.write(first)
            with contextlib.suppress(ConnectionError):  # closed even faster
                assert await peer.reader.read(10) == b""

    on_link(tmp_path, work)


def test_who_says_nothing_is_closed(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(limits, "LINK_HELLO_S_MAX", 0.1)

    async def work(dispatcher, log) -> None:
        async with dispatcher.peer() as peer:
            peer.writer.write(b"HGM1")
            assert await peer.closed()

    on_link(tmp_path, work)


def test_a_run_that_falls_silent_is_dead(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(limits, "LINK_SILENCE_S_MAX", 0.1)

    async def work(dispatcher, log) -> None:
        async with matcher(dispatcher) as peer:
            assert await peer.closed()

    on_link(tmp_path, work)


def test_a_hello_in_pieces_with_frames_behind_it(tmp_path: Path):
    async def work(dispatcher, log) -> None:
        log.append([event(0)])
        async with dispatcher.peer() as peer, dispatcher.peer() as driver:
            await driver.driver()
            for byte in encode_hello(RUN, TOKEN)[:-1]:
                peer.writer.write(bytes([byte]))
                await peer.writer.drain()
            peer.writer.write(encode_hello(RUN, TOKEN)[-1:])
            peer.passed(1)
            assert await peer.reader.readexactly(1) == b"\x06"
            while (await driver.ask(op="resume"))["offsets"] != {"0": 1}:
                await asyncio.sleep(0.005)

    on_link(tmp_path, work)


@pytest.mark.parametrize("seed", range(20))
def test_hostile_bytes_close_the_connection_and_nothing_else(tmp_path: Path, seed: int):
    chance = random.Random(seed)

    async def work(dispatcher, log) -> None:
        log.append([event(n) for n in range(3)])
        for number in range(1, 15):
            async with dispatcher.peer() as peer:
                if chance.random() < 0.8:
                    hello = Hello(number, 1, chance.randint(0, 2), chance.randint(1, 3), chance.randint(0, 4))
                    peer.writer.write(encode_hello(hello, TOKEN))
                else:
                    await peer.driver()
                    peer.writer.write(b'{"op": ')
                peer.writer.write(chance.randbytes(chance.randint(14, 4_096)))
                if chance.random() < 0.5:
                    peer.writer.write(b"\n")
                    assert await asyncio.wait_for(peer.closed(), 10)

    on_link(tmp_path, work)


def test_a_run_cannot_speak_of_events_that_do_not_exist(tmp_path: Path):
    async def work(dispatcher, log) -> None:
        log.append([event(0)])
        async with matcher(dispatcher) as peer:
            peer.passed(2)
            assert await peer.closed()
        async with dispatcher.peer() as driver:
            await driver.driver()
            assert (await driver.ask(op="resume"))["offsets"] == {"0": 0}

    on_link(tmp_path, work)


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"op": "stop"}\n', b'{"run": 1}\n', b"[]\n", b"x" * (1 << 17)])
def test_a_driver_that_sends_no_request_is_closed(tmp_path: Path, line: bytes):
    async def work(dispatcher, log) -> None:
        async with dispatcher.peer() as driver:
            await driver.driver()
            driver.writer.write(line)
            assert await driver.closed()

    on_link(tmp_path, work)


def test_one_run_takes_over_from_another_without_a_gap_or_a_repetition(tmp_path: Path):
    count = 400

    async def main() -> None:
        log = EventLog(tmp_path)
        async with Subscriber() as subscriber:
            async with running(tmp_path, Routes(target(1, subscriber.url))) as work, work.peer() as driver:
                await driver.driver()
                driver.started(1, 2)
                log.append([event(n) for n in range(count)])
                async with matcher(work, 1) as old:
                    assert await driver.line() == {"op": "active", "run": 1, "generation": 1}
                    old.match(*((offset, 1) for offset in range(100)))
                    async with matcher(work, 2, start=50) as new:
                        new.match(*((offset, 1) for offset in range(50, 300)))
                        assert await driver.line() == {"op": "active", "run": 2, "generation": 2}
                        old.match(*((offset, 1) for offset in range(100, count)))
                        new.match(*((offset, 1) for offset in range(300, count)))
                        await until(lambda: len(subscriber.requests) >= count)
                        driver.started(2)
                        assert await driver.line() == {"op": "active", "run": 2, "generation": 2}, "told late as well"
            assert sorted(subscriber.ids) == sorted(f"e{n}" for n in range(count))
        log.close()

    run(main())


def test_a_gap_is_told_to_the_driver(tmp_path: Path):
    async def work(dispatcher, log) -> None:
        log.append([event(n) for n in range(10)])
        async with dispatcher.peer() as driver, dispatcher.peer() as peer:
            await driver.driver()
            driver.started(9)
            await peer.hello(Hello(9, 1, 0, 1, 5))
            assert await peer.closed()
            told = await driver.line()
            assert (told["op"], told["run"]) == ("rejected", 9)
            assert "gap" in told["reason"]
            assert await driver.ask(op="started", run=9, generation=1) == told

    on_link(tmp_path, work)


def test_a_run_that_must_wait_is_not_read_beyond_a_bound(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(limits, "LINK_HELD_ROWS_MAX", 1_000)
    count = 100_000

    async def main() -> None:
        log = EventLog(tmp_path)
        routes = Routes()
        async with running(tmp_path, routes) as work, work.peer() as driver:
            await driver.driver()
            driver.started(1, 2)
            for first in range(0, count, 10_000):
                log.append([event(n) for n in range(first, first + 10_000)])
            async with matcher(work, 1) as old, matcher(work, 2, start=10) as new:
                assert (await driver.line())["run"] == 1
                new.match(*((offset, 1) for offset in range(10, count)))
                await asyncio.sleep(0.2)
                assert (await driver.ask(op="resume"))["offsets"] == {"0": 0}
                held = work.dispatcher._takeover.held_rows(2, 0)
                assert 1_000 < held < count // 2
                old.passed(10)
                assert (await driver.line())["run"] == 2
                while (await driver.ask(op="resume"))["offsets"] != {"0": count}:
                    await asyncio.sleep(0.01)
        log.close()

    run(main())

"""What does a subscriber that misbehaves cost the others? Real sockets that do the worst, beside a healthy trigger."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import resource
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headgate_api import limits
from tests.delivery.harness import EventLog, Routes, Subscriber, event, matcher, run, running, target
from tests.support import until

EVENTS = 40
Misbehaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def request(reader: asyncio.StreamReader) -> None:
    """Reads one request whole."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
    await reader.readexactly(int(length.partition(b":")[2]))


async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request(reader)
    await asyncio.sleep(3_600)


async def never_reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3_600)


async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def answers_byte_by_byte(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request(reader)
    for byte in b"HTTP/1.1 200 OK\r\ncontent-type: application/cloudevents+json\r\ncontent-length: 99999\r\n\r\n":
        writer.write(bytes([byte]))
        await asyncio.sleep(0.005)
    while True:
        writer.write(b" ")
        await asyncio.sleep(0.005)


async def sends_an_endless_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request(reader)
    writer.write(b"HTTP/1.1 500 X\r\ntransfer-encoding: chunked\r\n\r\n")
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    while True:
        writer.write(chunk)
        await writer.drain()
        await asyncio.sleep(0.001)  # the dispatcher is on this loop, too


async def replies_without_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request(reader)
    writer.write(b"HTTP/1.1 200 X\r\ncontent-type: application/cloudevents+json\r\ntransfer-encoding: chunked\r\n\r\n")
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    while True:
        writer.write(chunk)
        await writer.drain()
        await asyncio.sleep(0.001)  # the dispatcher is on this loop, too


async def sends_endless_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-more: " + b"y" * 1_000 + b"\r\n")
        await writer.drain()
        await asyncio.sleep(0.001)  # the dispatcher is on this loop, too


async def sends_ten_thousand_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request(reader)
    lines = b"".join(b"x-%d: y\r\n" % number for number in range(10_000))
    writer.write(b"HTTP/1.1 200 OK\r\n" + lines + b"content-length: 0\r\n\r\n")
    await writer.drain()


async def continues_without_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request(reader)
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
        await writer.drain()
        await asyncio.sleep(0.001)  # the dispatcher is on this loop, too


@functools.cache
def bomb() -> bytes:
    """128 MiB of zeros, made once."""
    return gzip.compress(bytes(128 << 20), 1)


async def bombs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request(reader)
    body = bomb()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/cloudevents+json\r\ncontent-encoding: gzip\r\n"
    writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()


async def talks_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request(reader)
    writer.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
    await writer.drain()


async def breaks_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345")
    await writer.drain()


async def redirects(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request(reader)
    here = "http://{}:{}/again".format(*writer.get_extra_info("sockname"))
    writer.write(b"HTTP/1.1 307 X\r\nlocation: %s\r\ncontent-length: 0\r\n\r\n" % here.encode())
    await writer.drain()


@contextlib.asynccontextmanager
async def misbehaving(behave: Misbehaviour):
    """A server that treats each connection so; gives its URL and how many connections there were."""
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        try:
            await behave(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except RuntimeError:  # what uvloop says of a transport that is gone
            assert writer.transport.is_closing()
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", connections
    finally:
        server.close()
        for writer in connections:
            writer.transport.abort()


ALL = [
    hangs,
    never_reads,
    resets,
    answers_byte_by_byte,
    sends_an_endless_body,
    replies_without_end,
    sends_endless_headers,
    sends_ten_thousand_headers,
    continues_without_end,
    bombs,
    talks_nonsense,
    breaks_off,
    redirects,
]


@pytest.mark.parametrize("behave", ALL, ids=lambda behave: behave.__name__)
def test_who_misbehaves_costs_its_own_trigger_only(tmp_path: Path, behave: Misbehaviour) -> None:
    log = EventLog(tmp_path)

    async def work() -> None:
        async with Subscriber() as healthy, misbehaving(behave) as (url, connections):
            # A minute for each attempt: what the healthy one gets, it gets while the other still misbehaves.
            routes = Routes(
                target(1, url, timeout_s=60.0, retry=1_000, backoff_delay_s=0.01),
                target(2, healthy.url),
            )
            async with running(tmp_path, routes, drain_s=0.05) as work, matcher(work) as peer:
                log.append([event(number, data=b'{"n":"%s"}' % (b"x" * 50_000)) for number in range(EVENTS)])
                peer.match(*((offset, n) for offset in range(EVENTS) for n in (1, 2)))
                await until(lambda: bool(connections))
                await until(lambda: len(healthy.requests) == EVENTS)
                # And one more, alone, when the other has had every chance.
                log.append([event(EVENTS)])
                peer.match((EVENTS, 2))
                await until(lambda: len(healthy.requests) == EVENTS + 1)
                assert sorted(set(healthy.ids)) == sorted(f"e{number}" for number in range(EVENTS + 1))
                assert len(healthy.requests) == EVENTS + 1, "nobody's event came twice"

    run(work())
    log.close()


def test_an_answer_without_end_is_cut_off_with_its_connection(tmp_path: Path) -> None:
    """By its bytes, not by its time: the attempt's timeout is an hour away."""
    log = EventLog(tmp_path)
    sent: list[int] = []

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 500 X\r\ntransfer-encoding: chunked\r\n\r\n")
        sent.append(0)
        at = len(sent) - 1
        while True:
            writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            await writer.drain()
            sent[at] += 0x10000

    async def work() -> None:
        async with misbehaving(endless) as (url, connections):
            routes = Routes(target(1, url, timeout_s=600.0, retry=3, backoff_delay_s=0.001))
            async with running(tmp_path, routes) as work, matcher(work) as peer:
                log.append([event(0)])
                peer.match((0, 1))
                await until(lambda: len(connections) == 4)
                await until(lambda: work.dispatcher.unfinished == 0)
        # What the kernel's buffers hold comes on top.
        assert max(sent) < limits.RESPONSE_BYTES_MAX + (16 << 20)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(work())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10, "KiB"
    log.close()


def test_redirects_are_never_followed(tmp_path: Path) -> None:
    log = EventLog(tmp_path)

    async def work() -> None:
        async with Subscriber() as elsewhere:

            async def send_away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await request(reader)
                writer.write(
                    b"HTTP/1.1 308 X\r\nlocation: %s\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                    % elsewhere.url.encode()
                )
                await writer.drain()

            async with (
                misbehaving(send_away) as (url, connections),
                running(tmp_path, Routes(target(1, url))) as work,
                matcher(work) as peer,
            ):
                log.append([event(0)])
                peer.match((0, 1))
                await until(lambda: bool(connections) and work.dispatcher.unfinished == 0)
            assert elsewhere.connections == 0

    run(work())
    log.close()


def test_an_attempt_that_has_ended_leaves_its_permit_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many times more events than there are permits."""
    monkeypatch.setattr(limits, "ATTEMPTS_HEALTHY_MAX", 4)

    async def answer(_: object) -> tuple[int, bytes]:
        return 202, b""

    async def main() -> None:
        log = EventLog(tmp_path)
        log.append([event(number) for number in range(EVENTS)])
        async with Subscriber(answer) as subscriber:
            routes = Routes(target(1, subscriber.url))
            async with running(tmp_path, routes) as work, matcher(work, 1) as peer:
                peer.match(*((offset, 1) for offset in range(EVENTS)))
                await until(lambda: len(subscriber.requests) == EVENTS)
        log.close()

    run(main())

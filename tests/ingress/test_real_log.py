"""Ingress on uvicorn and a real log: what is answered is what a reader finds."""

import asyncio
import contextlib
import errno
import json
import threading
import time
from pathlib import Path

import grpc
import pytest
import structlog
import uvicorn

from headgate.event.arrow import EVENT_SCHEMA, from_batch_all
from headgate.filter.skipping.prune import filter_value_rule
from headgate.ingress import http_connection as protocol
from headgate.ingress.encode import Entries, check_events, encode
from headgate.ingress.errors import StoredEventFormatError
from headgate.ingress.intake import Intake
from headgate.ingress.partitions import Partitions
from headgate.ingress.publish_http import Ingress
from headgate.log.directory import Partition
from headgate.log.files import FileOps
from headgate.log.format import Codec
from headgate.log.group_commit import ChunkCommit
from headgate.log.reader import PartitionReader
from headgate.log.writer import Encoded, PartitionWriter
from headgate.objects.kinds.specs import DEFAULT_RULE, LogRule, ServedBroker
from headgate.observe.metrics import CONNECTIONS_CLOSED, REQUESTS_REFUSED
from headgate_api import limits
from headgate_api.event.http import encode_binary
from headgate_api.event.json_format import encode_batch
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import (
    COMMIT_CHUNK_EVENTS_MAX,
    COMMIT_QUEUE_BYTES_MAX,
    COMMIT_QUEUE_EVENTS_MAX,
    EVENT_BYTES_MAX,
    REQUEST_HEAD_BYTES_MAX,
    REQUEST_HEADERS_MAX,
)
from tests.ingress.support import fallback
from tests.log.support import FaultyFiles


def event(number):
    return Event(
        "1.0",
        str(number),
        "/s",
        f"t{number % 3}",
        time="2018-04-05T17:31:00Z",
        data_kind=DataKind.BINARY,
        data=b"\x00\xff" * (number + 1),
    )


def http(method, headers, body=b""):
    lines = [f"{method} /ns/b HTTP/1.1", "host: x", f"content-length: {len(body)}"]
    lines += [f"{name}: {text}" for name, text in headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Gated:
    """A writer whose disk is as slow as a test wants."""

    def __init__(self, writer, gate):
        self._writer = writer
        self._gate = gate

    def append(self, chunk):
        if self._gate is not None:
            assert self._gate.wait(10)
        return self._writer.append(chunk)


@contextlib.asynccontextmanager
async def serving(directory: Path, gate=None, files=None, **limits):
    writer = PartitionWriter(Partition(directory, "stop"), EVENT_SCHEMA, files=files or FileOps())
    queue = {
        "queue_items_max": COMMIT_QUEUE_EVENTS_MAX,
        "queue_bytes_max": COMMIT_QUEUE_BYTES_MAX,
        "batch_items_max": COMMIT_CHUNK_EVENTS_MAX,
    }
    commit = ChunkCommit(Gated(writer, gate), encode, **(queue | limits))
    app = Ingress(Intake(Partitions([commit]), {"ns/b": ServedBroker("ns/b/uid", DEFAULT_RULE)}.get), fallback)
    server = uvicorn.Server(protocol.http_config(app, "127.0.0.1", 0))
    running = asyncio.create_task(server.serve())
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1], commit
    finally:
        server.should_exit = True
        await running
        await commit.close()
        writer.close()


async def exchange(port, *requests):
    """Sends requests on one connection and gives the status of each answer; stops where the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    statuses = []
    for request in requests:
        with contextlib.suppress(ConnectionError):
            writer.write(request)
            await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        statuses.append(int(lines[0].split()[1]))
        (length,) = [int(line.split(":")[1]) for line in lines if line.startswith("content-length")]
        await reader.readexactly(length)
        if "connection: close" in lines:
            break
    writer.close()
    return statuses


def stored(directory):
    reader = PartitionReader(Partition(directory, "stop"), start=0)
    found = []
    while (chunk := reader.read()) is not None:
        found += from_batch_all(chunk.batch)
    reader.close()
    return found


def binary(number):
    headers, body = encode_binary(event(number))
    return http("POST", headers, body)


def test_events_in_another_versions_format_are_refused(tmp_path):
    """An event whose `broker` says the broker's name and no identity would be nobody's, without a word."""
    check_events(Partition(tmp_path / "0", "stop"))
    with PartitionWriter(Partition(tmp_path / "0", "stop"), EVENT_SCHEMA) as writer:
        writer.append(Encoded(encode([entries("type", event(1))]).batch, ["t"]))
    check_events(Partition(tmp_path / "0", "stop"))
    old = EVENT_SCHEMA.remove_metadata()
    with PartitionWriter(Partition(tmp_path / "1", "stop"), old) as writer:
        writer.append(Encoded(encode([entries("type", event(1))]).batch.replace_schema_metadata(None), ["t"]))
    with PartitionWriter(Partition(tmp_path / "1", "stop"), EVENT_SCHEMA) as writer:
        writer.append(Encoded(encode([entries("type", event(1))]).batch, ["t"]))
    with pytest.raises(StoredEventFormatError, match=r"1 holds events in the format of another version"):
        check_events(Partition(tmp_path / "1", "stop"))


def test_every_answered_event_is_in_the_log_once_and_in_order(tmp_path):
    async def scenario():
        async with serving(tmp_path / "0") as (port, _):
            singles = [exchange(port, *[binary(10 * lane + step) for step in range(10)]) for lane in range(5)]
            body = encode_batch([event(number) for number in range(50, 150)])
            batches = exchange(port, http("POST", [("content-type", "application/cloudevents-batch+json")], body))
            return await asyncio.gather(*singles, batches)

    assert asyncio.run(scenario()) == [[202] * 10] * 5 + [[202]]
    found = stored(tmp_path / "0")
    assert {each.broker for each in found} == {"ns/b/uid"}
    assert sorted((each.event for each in found), key=lambda each: int(each.id)) == [event(n) for n in range(150)]
    order = [int(each.event.id) for each in found]
    for lane in range(5):  # one producer's events keep their order
        mine = [number for number in order if number // 10 == lane]
        assert mine == sorted(mine)
    assert [number for number in order if number >= 50] == list(range(50, 150))  # a batch stays together


def test_the_filter_value_of_an_event_is_its_type(tmp_path):
    async def scenario():
        async with serving(tmp_path / "0") as (port, _):
            for number in (0, 1, 2, 3):
                await exchange(port, binary(number))

    asyncio.run(scenario())
    reader = PartitionReader(Partition(tmp_path / "0", "stop"), start=0)
    chunk = reader.read(wanted=["t2"])
    assert [each.event.type for each in from_batch_all(chunk.batch)] == ["t2"]
    assert chunk.first_offset == 2
    reader.close()


def entries(rule, *events):
    return Entries("ns/b", LogRule(filter_value_rule(rule)), events)


def skipped(directory, value):
    """Whether a reader that wants `value` passes over the only chunk."""
    with PartitionReader(Partition(directory, "stop"), start=0) as reader:
        return reader.read(wanted=[value]) is None


@pytest.mark.parametrize(
    ("rule", "extensions", "held", "unfiltered"),
    [
        ("type", {}, {"t1"}, False),
        ("tenant", {"tenant": "a"}, {"a"}, False),
        ("tenant", {"tenant": 7}, {"7"}, False),
        ("tenant", {}, set(), True),
        ("tenant", {"tenant": ""}, set(), True),
        ("type", {"filtervalue": "mine"}, {"mine", "t1"}, False),
        ("type", {"filtervalue": ""}, {"t1"}, True),
        ("tenant", {"filtervalue": "mine"}, {"mine"}, True),  # what the rule says is missing: readers may pin that
        ('ce.type + "/" + data.customer.tier', {}, {"t1/gold"}, False),
        ("data.nowhere", {}, set(), True),
        ("data.customer", {}, set(), True),
    ],
)
def test_the_chunk_holds_the_value_of_the_rule_and_the_producer_s(tmp_path, rule, extensions, held, unfiltered):
    given = Event(
        "1.0", "1", "/s", "t1", extensions=extensions, data_kind=DataKind.JSON, data=b'{"customer":{"tier":"gold"}}'
    )
    chunk = encode([entries(rule, given)])
    with PartitionWriter(Partition(tmp_path, "stop"), EVENT_SCHEMA) as writer:
        writer.append(Encoded(chunk.batch, chunk.filter_values, also=chunk.also, bloom_bytes=64, codec=Codec.ZSTD))
    with PartitionReader(Partition(tmp_path, "stop"), start=0) as reader:
        header = reader.read().header
    assert header.unfiltered is unfiltered
    assert header.bloom_bytes == (64 if held else 0)
    assert header.codec == Codec.ZSTD
    for value in ("t1", "a", "7", "mine", "t1/gold", "gold"):
        assert skipped(tmp_path, value) is (value not in held)


def test_a_chunk_of_several_brokers_takes_the_largest_filter_and_the_strongest_compression():
    rules = [LogRule(filter_value_rule("type"), size, codec) for size, codec in ((16, Codec.LZ4), (99, Codec.NONE))]
    chunk = encode([Entries("ns/b", rule, [event(1)]) for rule in rules])
    assert (chunk.bloom_bytes, chunk.codec) == (99, Codec.LZ4)


def test_a_full_queue_answers_429_and_a_closed_log_503(tmp_path):
    async def scenario():
        gate = threading.Event()
        async with serving(tmp_path / "0", gate, queue_items_max=2) as (port, commit):
            body = encode_batch([event(1), event(2)])
            request = http("POST", [("content-type", "application/cloudevents-batch+json")], body)
            first = asyncio.create_task(exchange(port, request))
            while commit._room.items < 2:
                await asyncio.sleep(0.001)
            overload = await exchange(port, binary(3))
            gate.set()
            accepted = await first
            await commit.close()
            return accepted, overload, await exchange(port, binary(4))

    assert asyncio.run(scenario()) == ([202], [429], [503])
    assert [each.event.id for each in stored(tmp_path / "0")] == ["1", "2"]


@pytest.mark.parametrize("extra", [1, 10_000])
def test_a_large_body_is_refused_and_the_server_lives_on(tmp_path, extra):
    async def scenario():
        async with serving(tmp_path / "0") as (port, _):
            large = http("POST", [("content-type", "application/cloudevents+json")], b" " * (EVENT_BYTES_MAX + extra))
            return await exchange(port, large, binary(1)), await exchange(port, binary(2))

    assert asyncio.run(scenario()) == ([413], [202])


def test_a_head_without_end_is_refused_and_the_server_lives_on(tmp_path):
    async def scenario():
        async with serving(tmp_path / "0") as (port, _):
            endless = b"POST /ns/b HTTP/1.1\r\nx-endless: " + b"x" * (2 * REQUEST_HEAD_BYTES_MAX)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ConnectionError):
                writer.write(endless)
                await writer.drain()
            with contextlib.suppress(ConnectionError):
                answer = await reader.read(12)
                assert answer in (b"", b"HTTP/1.1 431")
            writer.close()
            many = [(f"x-{number}", "x" * 1000) for number in range(100)]
            return await exchange(port, http("POST", many), binary(1)), await exchange(port, binary(2))

    assert asyncio.run(scenario()) == ([400, 202], [202])


@pytest.mark.parametrize(
    ("code", "operation", "said", "hint"),
    [
        (errno.ENOSPC, "pwritev", "No space left on device", "free space"),
        (errno.EIO, "fdatasync", "Input/output error", "try again later"),
    ],
)
def test_a_producer_hears_the_kind_of_trouble_and_the_log_names_the_file(tmp_path, code, operation, said, hint):
    files = FaultyFiles()

    async def scenario():
        async with serving(tmp_path / "0", files=files) as (port, commit):
            files.fail(operation, code=code)
            answers = []
            for number in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(binary(number))
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                answers.append((head, json.loads(await reader.readexactly(length))))
                writer.close()
            files.heal()
            return answers, commit.problem, await exchange(port, binary(1))

    with structlog.testing.capture_logs() as logged:
        answers, problem, after = asyncio.run(scenario())
    for head, body in answers:
        assert head.startswith(b"HTTP/1.1 503 ")
        assert (body["code"], body["detail"]) == ("log-unavailable", f"the log takes nothing now: {said}")
        assert hint in body["hint"]
        assert str(tmp_path) not in str((head, body))
    assert str(tmp_path) in problem
    assert [line["problem"] for line in logged if "problem" in line] == [problem], "once, not for each request"
    assert after == [202]


async def answer_to(port, *pieces):
    """Sends pieces, then waits until the server closes; the first line of what it said."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.01)
    said = b""
    with contextlib.suppress(ConnectionError):
        said = await reader.read()
    writer.close()
    return said.split(b"\r\n")[0]


SLOW = {
    "nothing": ((), b""),
    "head": ((b"POST /ns/b HTTP/1.1\r\n", b"host: x\r\n"), b"HTTP/1.1 408 Request Timeout"),
    "body": ((http("POST", [("ce-id", "1")], b"x" * 99)[:-50], b"y"), b"HTTP/1.1 408 Request Timeout"),
    "second head": ((binary(1), b"POST /ns"), b"HTTP/1.1 202 Accepted"),
}


@pytest.mark.parametrize("slow", SLOW)
def test_a_request_that_does_not_end_is_given_up_and_others_are_served(tmp_path, monkeypatch, slow):
    monkeypatch.setattr(limits, "REQUEST_HEAD_S_MAX", 0.2)
    monkeypatch.setattr(limits, "REQUEST_S_MAX", 0.3)
    pieces, due = SLOW[slow]
    refused = REQUESTS_REFUSED.labels("too-slow").value

    async def scenario():
        async with serving(tmp_path / "0") as (port, _):
            slow_ones = [asyncio.create_task(answer_to(port, *pieces)) for _ in range(20)]
            assert await exchange(port, binary(2)) == [202]
            return set(await asyncio.gather(*slow_ones))

    assert asyncio.run(scenario()) == {due}
    assert REQUESTS_REFUSED.labels("too-slow").value == refused + (0 if slow == "nothing" else 20)


def test_a_body_that_takes_its_time_but_ends_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "REQUEST_HEAD_S_MAX", 0.1)
    request = http(
        "POST", [("ce-specversion", "1.0"), ("ce-id", "slow"), ("ce-source", "/s"), ("ce-type", "t")], b"x" * 9
    )

    async def scenario():
        async with serving(tmp_path / "0") as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for at in range(len(request) - 9, len(request)):
                writer.write(request[:at] if at == len(request) - 9 else request[at - 1 : at])
                await asyncio.sleep(0.05)
            writer.write(request[-1:])
            head = await reader.readuntil(b"\r\n\r\n")
            writer.close()
            return head.split()[1]

    assert asyncio.run(scenario()) == b"202"
    assert [each.event.id for each in stored(tmp_path / "0")] == ["slow"]


def test_more_headers_than_anybody_sends_are_refused(tmp_path):
    async def scenario():
        async with serving(tmp_path / "0") as (port, _):
            many = [(f"x-{number}", "y") for number in range(REQUEST_HEADERS_MAX + 1)]
            first = await answer_to(port, http("POST", many, b"{}"))
            return first, await exchange(port, binary(1))

    assert asyncio.run(scenario()) == (b"HTTP/1.1 431 Request Header Fields Too Large", [202])


CHUNKED = (
    b"POST /ns/b HTTP/1.1\r\nhost: x\r\nce-specversion: 1.0\r\nce-id: 1\r\nce-source: /s\r\nce-type: t\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


UPGRADE = [("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c"), ("http2-settings", "AAMAAABk")]


def asking(number, *more):
    """An event, sent by a client that would rather speak HTTP/2."""
    headers, body = encode_binary(event(number))
    return http("POST", [*UPGRADE, *headers, *more], body)


@pytest.mark.parametrize("size", [1, 7, 250, 10_000])
def test_who_asks_for_another_protocol_is_served_in_this_one(tmp_path, size):
    body = encode_binary(event(2))[1]
    chunked = CHUNKED.replace(b"ce-id: 1", b"ce-id: 2\r\nconnection: upgrade\r\nupgrade: h2c")
    chunked += b"%x\r\n%b\r\n0\r\nce-trailed: yes\r\n\r\n" % (len(body), body)
    sent = asking(0) + asking(1) + chunked + binary(3) + asking(4, ("connection", "close"))

    async def scenario():
        async with serving(tmp_path / "0") as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for at in range(0, len(sent), size):
                writer.write(sent[at : at + size])
                await asyncio.sleep(0)
            answers = await reader.read()
            writer.close()
            return [line for line in answers.split(b"\r\n") if line.startswith(b"HTTP/")]

    assert asyncio.run(scenario()) == [b"HTTP/1.1 202 Accepted"] * 5
    assert [(each.event.id, each.event.data, each.event.extensions) for each in stored(tmp_path / "0")] == [
        (str(number), event(number).data, {}) for number in range(5)
    ]


@pytest.mark.parametrize("method", ["CONNECT", "GET"])
@pytest.mark.parametrize("upgrade", [UPGRADE, []])
def test_a_tunnel_or_a_web_socket_is_refused_and_the_server_lives_on(tmp_path, method, upgrade):
    async def scenario():
        async with serving(tmp_path / "0") as (port, _):
            target = "x:80" if method == "CONNECT" else "/ns/b"
            asked = http(method, upgrade).replace(b"/ns/b", target.encode())
            return await exchange(port, asked), await exchange(port, binary(1))

    assert asyncio.run(scenario()) == ([400 if method == "CONNECT" else 405], [202])


def test_trailers_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "REQUEST_HEAD_S_MAX", 0.5)

    async def scenario():
        async with serving(tmp_path / "0") as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for piece in (CHUNKED + b"1\r\nx\r\n", b"0\r\nce-trailed: yes\r\n", b"ce-id: 2\r\n\r\n"):
                writer.write(piece)
                await asyncio.sleep(0.01)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 202")
            await asyncio.sleep(0.7)  # nothing of them passes for the begin of the next head
            writer.write(binary(2))
            answer = await reader.readuntil(b"\r\n\r\n")
            writer.close()
            return answer.split()[1]

    assert asyncio.run(scenario()) == b"202"
    assert [each.event for each in stored(tmp_path / "0")] == [
        Event("1.0", "1", "/s", "t", data_kind=DataKind.BINARY, data=b"x"),
        event(2),
    ]


@pytest.mark.parametrize(
    ("begin", "more"),
    [(b"0\r\n", b"a: b\r\n" * 10_000), (b"0\r\na: ", b"x" * 60_000), (b"1;a=", b"x" * 60_000)],
    ids=["trailers", "trailer", "extension"],
)
def test_what_comes_with_a_body_without_end_is_refused(tmp_path, begin, more):
    async def scenario():
        async with serving(tmp_path / "0") as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(CHUNKED + b"1\r\nx\r\n" + begin)
            said = asyncio.ensure_future(reader.read())
            sent_bytes = 0
            with contextlib.suppress(ConnectionError):
                while not said.done() and sent_bytes < 100 * REQUEST_HEAD_BYTES_MAX:
                    writer.write(more)
                    sent_bytes += len(more)
                    await writer.drain()
            writer.close()
            with contextlib.suppress(ConnectionError):
                assert (await said)[:12] in (b"", b"HTTP/1.1 431")
            assert sent_bytes < 100 * REQUEST_HEAD_BYTES_MAX
            return await exchange(port, binary(1))

    refused = REQUESTS_REFUSED.labels("headers-too-large").value
    assert asyncio.run(scenario()) == [202]
    assert REQUESTS_REFUSED.labels("headers-too-large").value == refused + 1
    assert [each.event.id for each in stored(tmp_path / "0")] == ["1"]


def test_a_connection_without_a_request_is_kept_and_then_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "KEEP_ALIVE_S", 1)

    async def scenario():
        async with serving(tmp_path / "0") as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(binary(1))
            await reader.readuntil(b"\r\n\r\n")
            heard_at = time.monotonic()
            assert await reader.read() == b""
            writer.close()
            return time.monotonic() - heard_at

    assert 0.9 < asyncio.run(scenario()) < 4, "not the limit, but the default of 5 s"


BEGUN = b"POST /ns/b HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n"
"""A head whose body does not come."""


async def hold(port, count, first=b"", host="127.0.0.1"):
    held = [await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0)) for _ in range(count)]
    for _, writer in held:
        writer.write(first)
    await asyncio.sleep(0.05)
    return held


async def are_closed(connections):
    """Whether each of them is; all are then."""
    closed = []
    for reader, writer in connections:
        try:
            closed.append(await asyncio.wait_for(reader.read(), 0.1) == b"")
        except TimeoutError:
            closed.append(False)
        writer.close()
    await asyncio.sleep(0.05)
    return closed


@pytest.mark.parametrize("bound", ["CONNECTIONS_MAX", "CONNECTIONS_A_CLIENT_MAX"])
def test_connections_with_a_request_are_bounded(tmp_path, monkeypatch, bound):
    monkeypatch.setattr(limits, bound, 3)
    refused = CONNECTIONS_CLOSED.labels("refused").value

    async def scenario():
        async with serving(tmp_path / "0") as (port, _):
            held = await hold(port, 3, BEGUN)
            assert await answer_to(port) == b""
            for _, writer in held:
                writer.close()
            await asyncio.sleep(0.05)
            return await exchange(port, binary(1))

    assert asyncio.run(scenario()) == [202]
    assert CONNECTIONS_CLOSED.labels("refused").value == refused + 1


@pytest.mark.parametrize("first", [b"", b"POST /ns/b HTTP/1.1\r\nx: ", binary(1)], ids=["silent", "slow", "kept alive"])
def test_the_oldest_idle_connection_makes_room(tmp_path, monkeypatch, first):
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 3)
    evicted = CONNECTIONS_CLOSED.labels("idle").value

    async def scenario():
        async with serving(tmp_path / "0") as (port, _):
            (begun,) = await hold(port, 1, BEGUN)
            held = await hold(port, 2, first)
            for reader, _ in held if first == binary(1) else ():
                await reader.readuntil(b"\r\n\r\n")
            assert await exchange(port, binary(1)) == [202]
            return await are_closed([begun, *held])

    assert asyncio.run(scenario()) == [False, True, False]
    assert CONNECTIONS_CLOSED.labels("idle").value == evicted + 1


def test_idle_connections_of_one_client_cost_nobody_else_any(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "CONNECTIONS_A_CLIENT_MAX", 4)
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 8)

    async def scenario():
        async with serving(tmp_path / "0") as (port, _):
            kept = await hold(port, 2, binary(1), host="127.0.0.2")
            flood = await hold(port, 40)
            assert await exchange(port, binary(1)) == [202]
            for reader, writer in kept:  # they are still answered
                await reader.readuntil(b"\r\n\r\n")
                writer.write(binary(2))
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 202")
            await are_closed(kept)
            return sum(await are_closed(flood))

    assert asyncio.run(scenario()) == 37


def test_who_begins_with_http_2_hears_where_grpc_is(tmp_path):
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])

    async def scenario():
        async with serving(tmp_path / "0") as (port, _):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await channel.unary_unary("/headgate.v1.Reader/Read")(b"", timeout=30)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE, "at once, not by its deadline"
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(preface)
            said = await reader.read()
            writer.close()
            return said

    answer = asyncio.run(scenario())
    assert answer.startswith(b"HTTP/1.1 505 ")
    assert b"--grpc" in answer

"""Reading over HTTP: the real application on a real log, called over a Unix socket as the front calls it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httptools
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from headgate.event.arrow import EVENT_SCHEMA
from headgate.ingress.encode import Entries, encode
from headgate.log.directory import LogDirectory, OnCorrupt, Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate.scan.chunks import ChunkLog
from headgate.scan.scan import Piece, Scan
from headgate.server.peers.local_http import ProcessProxy
from headgate.stream import api, follow
from headgate.stream.api import ReadApi
from headgate.stream.follow import Readers
from headgate_api.event.model import DataKind, Event
from tests.objects import support

BROKER = "ns/b"
SERVED = ServedBroker(f"{BROKER}/1", DEFAULT_RULE)
EVENTS = 12


def event(number: int) -> Event:
    data = b'{\n "n": %d,\n "tags": ["t%d"]\n}' % (number, number % 3)
    return Event("1.0", f"e{number}", "/s", f"type{number % 4}", data_kind=DataKind.JSON, data=data)


class Log:
    """Two partitions; event n is in partition n % 2, stored at second n."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._now_us = 0
        self._writers = [
            PartitionWriter(Partition(directory / str(number), "stop"), EVENT_SCHEMA, clock_us=lambda: self._now_us)
            for number in range(2)
        ]

    def store(self, *numbers: int, broker: str = SERVED.identity) -> None:
        for number in numbers:
            self._now_us = 1_000_000 * (number + 1)
            chunk = encode([Entries(broker, DEFAULT_RULE, [event(number)])])
            self._writers[number % 2].append(Encoded(chunk.batch, chunk.filter_values))

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


class Answer(support.Answer):
    def ids(self) -> list[str]:
        return sorted((line["id"] for line in self.lines() if "id" in line), key=lambda name: int(name[1:]))

    def progress(self) -> dict[str, Any]:
        return self.lines()[-1]["progress"]


class Client:
    def __init__(self, socket: Path) -> None:
        self._socket = socket

    @contextlib.asynccontextmanager
    async def open(self, query: str = "", accept: str = "", path: str = f"/{BROKER}/events", **headers: str):
        source, sink = await asyncio.open_unix_connection(str(self._socket))
        lines = [f"GET {path}{query and '?'}{query} HTTP/1.1", "host: x", "connection: close"]
        lines += [f"accept: {accept}"] if accept else []
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        sink.write("\r\n".join([*lines, "", ""]).encode())
        try:
            yield source
        finally:
            sink.close()

    async def get(self, query: str = "", accept: str = "", **more: str) -> Answer:
        found: dict[str, Any] = {"headers": {}, "body": b""}

        class Parser:
            def on_header(self, name: bytes, value: bytes) -> None:
                found["headers"][name.decode().lower()] = value.decode()

            def on_body(self, body: bytes) -> None:
                found["body"] += body

        parser = httptools.HttpResponseParser(Parser())
        async with self.open(query, accept, **more) as source:
            while data := await source.read(1 << 16):
                parser.feed_data(data)
        return Answer(parser.get_status_code(), found["headers"], found["body"])


@contextlib.asynccontextmanager
async def listening(app: Starlette, socket: Path) -> AsyncIterator[None]:
    config = uvicorn.Config(app, uds=str(socket), lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        await serving


def scenario(
    tmp_path: Path, work, brokers: dict[str, ServedBroker] | None = None, on_corrupt: OnCorrupt = "stop"
) -> None:  # type: ignore[no-untyped-def]
    """Runs `work(client, log)` against the front's proxy before the reader."""

    async def run() -> None:
        log = Log(tmp_path / "log")
        log.store(*range(EVENTS))
        readers = Readers(
            ChunkLog(LogDirectory(tmp_path / "log", on_corrupt)),
            (brokers if brokers is not None else {BROKER: SERVED}).get,
        )
        reader = Starlette(routes=ReadApi(readers).routes(), exception_handlers=ERROR_HANDLERS)
        proxy = ProcessProxy(tmp_path / "r.sock")
        front = Starlette(routes=[Route("/{ns}/{b}/events", proxy)], exception_handlers=ERROR_HANDLERS)
        async with listening(reader, tmp_path / "r.sock"), listening(front, tmp_path / "f.sock"):
            await asyncio.wait_for(work(Client(tmp_path / "f.sock"), log), 60)
        await readers.close()
        log.close()

    asyncio.run(run())


def names(*numbers: int) -> list[str]:
    return [f"e{number}" for number in numbers]


@pytest.mark.parametrize("accept", ["application/x-ndjson", "application/cloudevents-batch+json"])
def test_head_is_answered_and_the_connection_goes_on(tmp_path: Path, accept: str):
    async def work(client: Client, log: Log) -> None:
        def ask() -> list[tuple[int, str | None, bytes]]:
            found = []
            with contextlib.closing(http.client.HTTPConnection("front", timeout=20)) as connection:
                connection.sock = socket.socket(socket.AF_UNIX)
                connection.sock.connect(str(tmp_path / "f.sock"))
                connection.auto_open = 0
                for method in ("HEAD", "GET"):
                    connection.request(method, f"/{BROKER}/events", headers={"accept": accept})
                    answer = connection.getresponse()
                    found.append((answer.status, answer.getheader("content-type"), answer.read()))
            return found

        head, whole = await asyncio.to_thread(ask)
        assert head == (200, whole[1], b"")
        assert whole[0] == 200
        assert b"e7" in whole[2]

    scenario(tmp_path, work)


def test_lines_with_places_and_a_last_word(tmp_path: Path):
    async def work(client: Client, log: Log) -> None:
        answer = await client.get()
        assert (answer.status, answer.headers["content-type"]) == (200, "application/x-ndjson")
        assert answer.ids() == names(*range(EVENTS))
        places = {line["id"]: line["hgposition"] for line in answer.lines() if "id" in line}
        assert places["e7"] == "1:3"
        assert answer.lines()[0]["data"]["tags"] == ["t0"]
        progress = answer.progress()
        assert progress["position"] == "0:6,1:6"
        assert progress["atEnd"] is True
        assert (progress["eventsScanned"], progress["eventsMatched"]) == (EVENTS, EVENTS)

    scenario(tmp_path, work)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("filterValue=type1", [1, 5, 9]),
        ("filter=data.n%3E8", [9, 10, 11]),
        ("filter=%7B%22attributes%22%3A%7B%22type%22%3A%22type2%22%7D%7D", [2, 6, 10]),
        ("filter=%22t1%22%20in%20data.tags&filterValue=type1&filterValue=type3", [1, 7]),
        ("from=0:3,1:5", [6, 8, 10, 11]),
        ("from=latest", [10, 11]),
        ("from=next", []),
        ("from=1970-01-01T00:00:09Z", [8, 9, 10, 11]),
        ("from=2050-01-01T00:00:00Z", []),
        ("first=data.n%20%3D%3D%207", [7, 8, 9, 10, 11]),
        ("first=data.n%20%3D%3D%2099", []),
        ("matchUnfiltered=true", []),
    ],
)
def test_what_is_asked_for_comes(tmp_path: Path, query: str, wanted: list[int]):
    async def work(client: Client, log: Log) -> None:
        assert (await client.get(query)).ids() == names(*wanted)

    scenario(tmp_path, work)


def test_reading_goes_on_where_it_stopped(tmp_path: Path):
    async def work(client: Client, log: Log) -> None:
        seen: list[str] = []
        position = "earliest"
        for _ in range(5):
            answer = await client.get(f"limit=3&from={position}", "application/cloudevents-batch+json")
            position = answer.headers["headgate-position"]
            seen += [each["id"] for each in json.loads(answer.body)]
        assert sorted(seen) == sorted(names(*range(EVENTS)))
        assert answer.headers["headgate-at-end"] == "true"

    scenario(tmp_path, work)


def test_the_latest_event_is_the_brokers_own(tmp_path: Path):
    """Others share its partitions, among them one of its name that has been deleted."""

    async def work(client: Client, log: Log) -> None:
        log.store(*range(EVENTS, EVENTS + 9), broker="ns/b/0")
        assert (await client.get("from=latest")).ids() == names(10, 11)
        log.store(EVENTS + 9)
        log.store(EVENTS + 10, EVENTS + 11, broker="ns/c/1")
        assert (await client.get("from=latest")).ids() == names(10, EVENTS + 9)

    scenario(tmp_path, work)


def test_each_server_sent_event_has_the_position_behind_it(tmp_path: Path):
    """Whoever loses the connection behind any of them misses none and gets none twice."""

    async def work(client: Client, log: Log) -> None:
        found = (await client.get("limit=12", "text/event-stream")).body.decode()
        messages = [dict(line.split(": ", 1) for line in one.splitlines()) for one in found.split("\n\n") if one]
        events = [message for message in messages if message.get("event") != "progress"]
        assert [len(message) for message in events] == [2] * EVENTS
        for count in range(1, EVENTS):
            seen = [json.loads(message["data"])["id"] for message in events[:count]]
            rest = await client.get(f"limit={EVENTS - count}&from={events[count - 1]['id']}")
            assert sorted([*seen, *rest.ids()]) == sorted(names(*range(EVENTS)))

    scenario(tmp_path, work)


def test_a_follower_is_told_that_the_broker_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headgate.stream.follow.READ_PROGRESS_S", 0.05)
    brokers = {BROKER: SERVED}

    async def work(client: Client, log: Log) -> None:
        for now in (None, ServedBroker(f"{BROKER}/2", DEFAULT_RULE)):
            brokers[BROKER] = SERVED
            async with client.open("from=next&follow=true") as source:
                await source.readuntil(b'"progress"')
                if now is None:
                    del brokers[BROKER]
                else:
                    brokers[BROKER] = now
                assert b'"unknown-broker"' in await source.readuntil(b'"error"') + await source.read(1 << 16)

    scenario(tmp_path, work, brokers)


def test_a_request_waits_for_a_first_event(tmp_path: Path):
    async def work(client: Client, log: Log) -> None:
        waiting = asyncio.create_task(client.get("from=next&wait=30", "application/cloudevents-batch+json"))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        log.store(EVENTS)
        assert [each["id"] for each in json.loads((await waiting).body)] == names(EVENTS)

    scenario(tmp_path, work)


def test_server_sent_events_follow_and_resume(tmp_path: Path):
    async def work(client: Client, log: Log) -> None:
        async with client.open("from=next&filterValue=type0", "text/event-stream") as source:
            text = await source.readuntil(b"event: progress")
            assert b"text/event-stream" in text
            log.store(EVENTS, EVENTS + 1)  # of type0 and type1
            text = await source.readuntil(b'"e12"')
            assert b'"e13"' not in text
        answer = asyncio.create_task(client.get("from=latest&limit=1", "text/event-stream", last_event_id="0:2,1:7"))
        assert b'"e4"' in (await answer).body

    scenario(tmp_path, work)


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("from=nowhere", 400, "nowhere"),
        ("from=7:1", 400, "position"),
        ("from=0:7,1:6", 400, "0:7 is behind the end of this log, 0:6"),
        ("filter=ce.type%20%3D", 422, "filter"),
        ("unknown=1", 400, "unknown"),
    ],
)
@pytest.mark.parametrize("accept", ["", "text/event-stream", "application/cloudevents-batch+json"])
def test_a_wrong_request_is_an_answer(tmp_path: Path, query: str, status: int, said: str, accept: str):
    async def work(client: Client, log: Log) -> None:
        answer = await client.get(query, accept)
        assert answer.status in (status, 400)
        assert said in json.loads(answer.body)["message"]

    scenario(tmp_path, work)


def test_an_unknown_broker_and_a_reader_that_is_not_there(tmp_path: Path):
    async def work(client: Client, log: Log) -> None:
        answer = await client.get(path="/ns/other/events")
        assert (answer.status, json.loads(answer.body)["kind"]) == (404, "Status")
        (tmp_path / "r.sock").unlink()
        answer = await client.get()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")

    scenario(tmp_path, work)


def test_a_client_that_leaves_ends_its_reader(tmp_path: Path):
    async def work(client: Client, log: Log) -> None:
        before = asyncio.all_tasks()
        async with client.open("follow=true") as source:
            await source.readuntil(b'"e0"')
        for _ in range(500):
            await asyncio.sleep(0.02)
            if not any("_copy" in repr(task) or "_written" in repr(task) for task in asyncio.all_tasks() - before):
                return
        raise AssertionError("the reader still reads")

    scenario(tmp_path, work)


@pytest.mark.parametrize("accept", ["", "text/event-stream"])
def test_a_damaged_chunk_ends_the_answer_with_its_place_or_is_passed_over(tmp_path: Path, accept: str):
    """Events 0, 2, 4, ... are the chunks of partition 0; the third is damaged."""

    def flip(folder: Path) -> Path:
        (path,) = (folder / "log" / "0").glob("*.seg")
        data = bytearray(path.read_bytes())
        data[data.index(b'"n": 4')] ^= 1
        path.write_bytes(data)
        return path

    async def stopping(client: Client, log: Log) -> None:
        path = flip(tmp_path / "stop")
        answer = await client.get("from=0:0,1:6&follow=false", accept)
        assert answer.status == 200
        text = answer.body.decode()
        assert '"e0"' in text
        assert '"e2"' in text
        assert '"e4"' not in text
        assert '"e6"' not in text
        assert str(path) in text.splitlines()[-1 if not accept else -2]
        assert '"log-corrupt"' in text
        answer = await client.get("from=0:2", "application/cloudevents-batch+json")
        assert (answer.status, json.loads(answer.body)["reason"]) == (500, "InternalError")
        assert str(path) in json.loads(answer.body)["message"]

    async def skipping(client: Client, log: Log) -> None:
        flip(tmp_path / "skip")
        answer = await client.get("from=0:0,1:6&follow=false", accept)
        assert '"e4"' not in answer.body.decode()
        assert '"e10"' in answer.body.decode()
        assert '"eventsCorrupt":1' in answer.body.decode()

    scenario(tmp_path / "stop", stopping)
    scenario(tmp_path / "skip", skipping, on_corrupt="skip")


def test_a_filter_is_understood_in_a_thread_and_not_on_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []

    class Watched(follow.Scan):
        def __init__(self, *arguments: Any) -> None:
            made.append(threading.current_thread().name)
            super().__init__(*arguments)

    monkeypatch.setattr(follow, "Scan", Watched)

    async def work(client: Client, _: Log) -> None:
        assert (await client.get("limit=1&filter=true")).status == 200

    scenario(tmp_path, work)
    assert [name.partition("_")[0] for name in made] == ["read"]


def test_a_batch_has_what_comes_before_damage(tmp_path: Path):
    """The third chunk of partition 0, event 4, is damaged: the batch ends before it, the next one begins with it."""

    async def work(client: Client, log: Log) -> None:
        (path,) = (tmp_path / "log" / "0").glob("*.seg")
        data = bytearray(path.read_bytes())
        data[data.index(b'"n": 4')] ^= 1
        path.write_bytes(data)
        answer = await client.get("from=earliest", "application/cloudevents-batch+json")
        assert answer.status == 200
        assert sorted(each["id"] for each in json.loads(answer.body)) == sorted(names(0, 2, *range(1, EVENTS, 2)))
        assert answer.headers["headgate-position"] == "0:2,1:6"
        assert answer.headers["headgate-at-end"] == "false"
        answer = await client.get("from=0:2,1:6", "application/cloudevents-batch+json")
        assert answer.status == 500

    scenario(tmp_path, work)


def test_a_batch_ends_above_its_bytes_and_large_ones_are_encoded_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(api, "READ_BATCH_BYTES_MAX", 1)
    monkeypatch.setattr(api, "READ_ENCODE_BYTES_MAX", 0)
    monkeypatch.setattr("headgate.scan.scan.SCAN_TURN_BYTES_MAX", 1)
    threads: list[str] = []
    encode_batch = api.encode_batch

    def named(events: list[Event]) -> bytes:
        threads.append(threading.current_thread().name)
        return encode_batch(events)

    monkeypatch.setattr(api, "encode_batch", named)

    async def work(client: Client, log: Log) -> None:
        seen, position = [], "earliest"
        for _ in range(EVENTS):
            answer = await client.get(f"from={position}", "application/cloudevents-batch+json")
            (event,) = json.loads(answer.body)
            seen.append(event["id"])
            position = answer.headers["headgate-position"]
        assert sorted(seen) == sorted(names(*range(EVENTS)))
        assert threading.main_thread().name not in threads

    scenario(tmp_path, work)


@pytest.mark.parametrize("query", ["", "first=data.n%20%3D%3D%2099"])
@pytest.mark.parametrize("accept", ["", "application/cloudevents-batch+json"])
def test_a_client_that_leaves_before_the_answer_begins_ends_its_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str, accept: str
):
    """A scan that never ends: only that its client has left can end it."""
    looking = threading.Event()

    def looks(scan: Scan, *_: object) -> list[Piece]:
        looking.set()
        time.sleep(0.01)
        return []

    monkeypatch.setattr(Scan, "step", looks)
    monkeypatch.setattr(Scan, "at_end", lambda _: False)
    monkeypatch.setattr("headgate.stream.follow.READ_PROGRESS_S", 1_000)

    async def work() -> None:
        log = Log(tmp_path / "log")
        log.store(0)
        log.close()
        readers = Readers(ChunkLog(LogDirectory(tmp_path / "log", "stop")), {BROKER: SERVED}.get)
        reader = Starlette(routes=ReadApi(readers).routes(), exception_handlers=ERROR_HANDLERS)
        async with listening(reader, tmp_path / "r.sock"):
            async with Client(tmp_path / "r.sock").open(query, accept):
                await asyncio.to_thread(looking.wait, 30)
                assert len(readers._places) == 1
            while readers._places:
                await asyncio.sleep(0.01)
        await readers.close()

    asyncio.run(asyncio.wait_for(work(), 30))

"""Does `headgate_client` do with a real server what it says? Its examples, and every question that it can ask."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest
from examples.client_publish import main as publish_orders
from examples.client_read import read as read_orders
from examples.client_subscribe import consume as consume_orders

from headgate.expr import property, publish_time
from headgate.testing.server import Server
from headgate_api.errors import ConflictError, InvalidInputError, NotFoundError, UnavailableError
from headgate_api.event.model import DataKind
from headgate_client.aio import AsyncClient
from headgate_client.sync import Client
from headgate_client.values import SeekProgress, new_event
from tests.support import eventually
from tests.system.publishing import broker

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)

pytestmark = pytest.mark.system

SECONDS_MAX = 120.0


def subscription(server: Server, name: str, broker: str, cel: str = "true", **spec: str) -> None:
    spec = {"broker": broker, "filter": {"expression": cel}, **spec}
    server.create("subscriptions", "default", name, spec)
    server.wait_object_ready("subscriptions", "default", name, seconds=SECONDS_MAX)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), SECONDS_MAX))


def test_the_examples_publish_read_and_consume(server: Server) -> None:
    broker(server, "shop")
    subscription(server, "large-orders", "shop", "data.total >= 900")
    assert publish_orders(server.grpc, "default/shop") == 100
    assert publish_orders(server.grpc, "default/shop", 110) == 110  # goes on where it was
    large = list(range(90, 110))
    numbers, position = asyncio.run(read_orders(server.grpc, "default/shop"))
    assert numbers == large
    assert asyncio.run(read_orders(server.grpc, "default/shop", position))[0] == []
    assert asyncio.run(consume_orders(server.grpc, "default/large-orders", len(large))) == large


def test_every_kind_of_event_comes_back_as_it_was_published(server: Server) -> None:
    broker(server, "kinds")
    moment = datetime(2026, 2, 3, 4, 5, 6, 700_000, tzinfo=UTC)
    events = [
        new_event("json", "/s", {"a": [1, None, "ä"]}, subject="s", time=moment, extensions={"n": 7, "b": True}),
        new_event("text", "/s", "plain", datacontenttype="text/plain", dataschema="https://a.example/s"),
        new_event("bytes", "/s", b"\x00\xff", id="1"),
        new_event("json bytes", "/s", b'{"a": 1.0}', datacontenttype="application/json", time="2026-01-01T00:00:00.5Z"),
        new_event("nothing", "/s"),
        new_event("null", "/s", None, datacontenttype="application/json"),
    ]
    with Client(server.grpc) as client:
        client.publish("kinds", iter(events))
        with client.read("kinds", follow=False) as reader:
            found = sorted((read.event for read in reader), key=lambda event: event.id)
        assert found == sorted(events, key=lambda event: event.id)
        assert {event.data_kind for event in found} == set(DataKind)
        with client.read("kinds", filter='ce.type == "json"', follow=False) as reader:
            [one] = reader
        assert one.json() == {"a": [1, None, "ä"]}
        assert one.event.time == "2026-02-03T04:05:06.700000Z"
        with pytest.raises(InvalidInputError, match="not JSON"):
            next(iter(client.read("kinds", filter='ce.type == "bytes"', follow=False))).json()


def test_readers_take_every_kind_of_filter_and_place(server: Server) -> None:
    broker(server, "places", {"log": {"filterValue": "subject"}})
    with Client(server.grpc) as client, client.producer("places", name="only") as producer:
        for number in range(20):
            value = "even" if number % 2 == 0 else ""
            producer.send(new_event("row", "/s", {"n": number}, id=str(number)), filter_value=value)
        producer.flush()

        def ids(**asked: Any) -> list[int]:
            with client.read("places", follow=False, **asked) as reader:
                return [int(read.event.id) for read in reader]

        everything, even = list(range(20)), list(range(0, 20, 2))
        assert ids() == everything
        assert ids(window=1) == everything
        assert ids(filter_values=["even"]) == even
        assert ids(filter_values=["even"], match_unfiltered=True) == everything
        assert ids(filter={"cesql": "id = '3'"}) == [3]
        assert ids(filter=[{"any": [{"exact": {"id": "4"}}, {"suffix": {"id": "15"}}]}]) == [4, 15]
        assert ids(filter=property("id").in_("7", "8")) == [7, 8]
        assert ids(first="data.n == 17") == [17, 18, 19]
        assert ids(start="latest") == [19]
        assert ids(start="next") == []
        assert ids(start=datetime(2020, 1, 1, tzinfo=UTC)) == everything
        with client.read("places", follow=False) as reader:
            for _ in range(5):
                next(reader)
            assert ids(start=reader.position) == everything[5:]
            assert len(list(reader)) == 15
            assert reader.next_batch() == []
            assert (reader.progress.at_end, reader.progress.events_matched) == (True, 20)
        for wrong, message in (({"filter": "ce.type =="}, "filter.cel"), ({"start": "yesterday"}, "yesterday")):
            with pytest.raises(InvalidInputError, match=message) as refused:
                ids(**wrong)
            assert refused.value.code
        with pytest.raises(NotFoundError):
            client.publish("nosuch", new_event("t", "/s"))
        with pytest.raises(NotFoundError):
            client.read("nosuch").__enter__()


def test_who_follows_gets_what_comes(server: Server) -> None:
    broker(server, "live")

    async def test() -> None:
        async with AsyncClient(server.grpc) as client, client.read("live", start="next") as reader:
            assert await reader.next_batch(wait_s=0.05) == []
            await client.publish("live", [new_event("t", "/s", id="1")])
            assert (await anext(reader)).event.id == "1"

    run(test)


def test_when_an_event_was_stored_is_asked_by_all_who_filter(server: Server) -> None:
    broker(server, "times")
    since = "publish_time >= timestamp('2026-01-31T12:00:00Z')"
    subscription(server, "since", "times", f"{since} && data.n >= 0")  # the matcher decides
    subscription(server, "before", "times", f"!({since})")
    subscription(server, "odd", "times", "publish_time.getFullYear() >= 2026 && data.n % 2 == 1")  # cel-cpp decides
    with Client(server.grpc) as client:
        client.publish("times", [new_event("t", "/s", {"n": n}, id=str(n)) for n in range(10)])
        eventually(lambda: client.stats("since").backlog == 10, lambda: client.stats("since"))
        assert client.stats("since").candidates == 0
        with client.subscribe("odd") as consumer:
            assert [next(consumer).event.id for _ in range(5)] == ["1", "3", "5", "7", "9"]
        assert client.stats("before").backlog == 0
        assert client.analyze("since", (publish_time() >= NOON) & (property("id").in_("1", "2"))).accepted == 2
        for wanted, count in ((publish_time() >= NOON, 10), (publish_time() < NOON, 0)):
            with client.read("times", filter=wanted, follow=False) as reader:
                assert len(list(reader)) == count
            assert (reader.progress.chunks_read > 0) is (count > 0)


def test_consumers_acknowledge_refuse_seek_and_ask(server: Server) -> None:
    broker(server, "tasks")
    subscription(server, "tasks", "tasks", 'ce.type == "task"', ackTimeout="PT600S")
    with Client(server.grpc) as client:
        with client.producer("tasks", name="only") as producer:
            producer.publish(new_event("task", "/s", {"n": n}, id=str(n)) for n in range(30))
            producer.publish(new_event("other", "/s"))
        eventually(lambda: client.stats("tasks").backlog == 30, lambda: client.stats("tasks"))
        found = client.analyze("tasks", "data.n < 10")
        assert (found.events, found.accepted, found.rejected, found.complete) == (30, 10, 20, True)
        with client.subscribe("tasks", consumer="a") as consumer:
            with pytest.raises(ConflictError, match="'a' has it") as busy:
                client.subscribe("tasks", consumer="b").__enter__()
            assert busy.value.hint
            got = [next(consumer) for _ in range(10)]
            assert [int(one.event.id) for one in got] == list(range(10))
            assert consumer.ack_up_to(got[4]).result(SECONDS_MAX) == []
            assert consumer.nack(got[9]).result(SECONDS_MAX) == []
            assert consumer.ack(*got[5:9]).result(SECONDS_MAX) == []
            assert client.stats("tasks").acknowledged == 9
            assert consumer.ack(got[0]).result(SECONDS_MAX) == [got[0].ack_id]
            again = next(one for one in consumer if one.event.id == "9")
            assert again.deliveries == 2
        eventually(lambda: client.stats("tasks").unacknowledged == 21, lambda: client.stats("tasks"))
        told: list[SeekProgress] = []
        epoch = client.stats("tasks").epoch
        sought = client.seek("tasks", "earliest", first="data.n == 25", on_progress=told.append)
        assert sought.epoch == epoch + 1
        with client.subscribe("tasks", consumer="b") as consumer:
            assert consumer.epoch == epoch + 1
            assert [int(one.event.id) for one in consumer.next_batch(2, wait_s=SECONDS_MAX)] == [25, 26]
            client.seek("tasks", last="data.n < 20", after=True)
            first = next(one for one in consumer if one.ack_id.startswith(f"{epoch + 2}:"))
            assert first.event.id == "20"
            epoch = client.stats("tasks").epoch
            client.seek("tasks", first=(property("id") == "17") & (publish_time() > NOON))
            first = next(one for one in consumer if one.ack_id.startswith(f"{epoch + 1}:"))
            assert first.event.id == "17"
            client.seek("tasks", last={"pulsar": {"property": "id", "operator": "IN", "values": ["3", "4"]}})
            first = next(one for one in consumer if one.ack_id.startswith(f"{epoch + 2}:"))
            assert first.event.id == "4"
        with pytest.raises(NotFoundError, match="true of no event"):
            client.seek("tasks", first=publish_time() < NOON)
        with pytest.raises(InvalidInputError, match="not to both"):
            client.seek("tasks", first="true", last="true")
        with pytest.raises(NotFoundError):
            client.stats("nosuch")
        with pytest.raises(NotFoundError):
            client.seek("nosuch")
        with pytest.raises(InvalidInputError):
            client.analyze("tasks", "data.n <")


def test_a_client_without_a_server_and_one_at_the_wrong_port(server: Server) -> None:
    with Client("127.0.0.1:1", patience_s=0) as client, pytest.raises(UnavailableError) as gone:
        client.publish("default", new_event("t", "/s"))
    assert "--grpc" in gone.value.hint
    with Client(f"127.0.0.1:{server.port}", patience_s=0) as client, pytest.raises(UnavailableError):
        client.stats("nosuch")
    with pytest.raises(InvalidInputError, match="HOST:PORT"):
        Client(f"{server.url}/default/default")


def test_importing_the_client_loads_nothing_of_the_server() -> None:
    code = "import sys, headgate_client; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    heavy = {"pyspark", "pyarrow", "cel_expr_python", "starlette", "uvicorn", "structlog", "pyreqwest", "typer"}
    assert not {*heavy, "headgate", "headgate_cli"} & {name.partition(".")[0] for name in loaded}

"""The list of chunks over HTTP and as a command, of logs as a front writes them: what it shows, hides and refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import pytest
from starlette.applications import Starlette

from headgate.auth.authorizer import (
    Authorizer,
    Binding,
    BindingSubject,
    RbacAuthorizer,
    RbacPolicy,
    RoleKey,
    SubjectKind,
)
from headgate.auth.context import USER
from headgate.auth.routes import wanted_by_request
from headgate.auth.rules import Attributes
from headgate.auth.user import SUPERUSERS, User, authenticated
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.filter.compile.request import condition
from headgate.filter.skipping.prune import filter_value_rule
from headgate.inspect import api as api_module
from headgate.inspect.api import InspectApi
from headgate.inspect.catalogue import Catalogues
from headgate.inspect.log_follower import LogFollower
from headgate.log.bloom import build
from headgate.log.directory import LogDirectory, Partition
from headgate.log.format import CHUNK_HEADER_BYTES, Codec
from headgate.log.reader import entries_newest_first
from headgate.log.recovery import list_segments
from headgate.log.retention import retain
from headgate.log.writer import Encoded, PartitionWriter
from headgate.objects.api.admission import Admission
from headgate.objects.api.bootstrap import ROLES
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.objects.kinds.rbac_rules import access_rules
from headgate.objects.store.store import Store
from headgate.scan.chunks import ChunkLog
from headgate.scan.scan import Scan
from headgate.scan.source import Query
from headgate_api import limits
from headgate_api.event import rfc3339
from headgate_api.event.model import Event
from headgate_api.objects.kinds import Kind
from tests.commands import headgate, told
from tests.log.support import NoSync
from tests.objects.support import broker

NOON_US = 1_767_268_800_000_000  # 2026-01-01T12:00:00Z
DAY_US = 86_400_000_000


class LogFixture:
    """A data directory whose log a test writes; the clock stands still but for what a test adds."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.store = Store.open(data / "control.db")
        self.now_us = NOON_US
        self.writer = self.opened(0)
        self.identities = self.store.snapshot().brokers

    def opened(self, number: int) -> PartitionWriter:
        partition = Partition(self.data / "log" / str(number), "stop")
        return PartitionWriter(partition, EVENT_SCHEMA, clock_us=lambda: self.now_us, files=NoSync())

    def append(
        self, *types: str | None, time_us: int | None = None, codec: Codec | None = None, of: str = "default/default"
    ) -> None:
        """A chunk with an event for each type; None is an event without a filter value."""
        self.now_us += 1_000_000
        identity = self.identities[of]
        events = [
            Event("1.0", f"secret-id-{number}", "/secret-source", type_ or "none") for number, type_ in enumerate(types)
        ]
        times = None if time_us is None else (time_us, time_us + 1_500_000)
        batch = to_batch([StoredEvent(identity, event) for event in events])
        self.writer.append(Encoded(batch, types, times, codec=codec))

    def close(self) -> None:
        self.writer.close()
        self.store.close()

    def app(self, authorizer: Authorizer | None = None, *, on_kafka: bool = False) -> Starlette:
        log = LogDirectory(self.data / "log", "stop")
        catalogues = Catalogues(LogFollower(ChunkLog(log)), self.store)
        more: dict[str, Any] = {} if authorizer is None else {"authorizer": authorizer}
        api = InspectApi(cast(Any, None), self.store, catalogues, log=None if on_kafka else log, **more)
        return Starlette(routes=list(api.routes()), exception_handlers=ERROR_HANDLERS)

    def ask(self, app: Starlette | None = None, user: User | None = None, **query: object) -> tuple[int, Any]:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/apis/headgate.dev/v1/chunks",
            "query_string": urlencode(query).encode(),
            "headers": [],
            USER: user or authenticated("root", (SUPERUSERS,)),
        }
        asyncio.run((app or self.app())(scope, receive, send))
        return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent))

    def listed(self, **query: object) -> Any:
        status, answer = self.ask(**query)
        assert status == 200, answer
        return answer


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogFixture]:
    with closing(LogFixture(tmp_path)) as found:
        yield found


def read(answer: Any) -> list[bool]:
    """Of each chunk, the newest first, whether it is read."""
    return [one["decision"]["read"] for one in answer["items"]]


# --- what is shown --------------------------------------------------------------------------------


def test_chunks_are_shown_as_their_headers_have_them(log: LogFixture) -> None:
    log.append("a", "b", time_us=NOON_US - DAY_US)
    log.append(None, codec=Codec.ZSTD)
    newest, oldest = log.listed()["items"]
    size = sum(path.stat().st_size for _, path in list_segments(log.data / "log" / "0"))
    assert newest["bytes"] + oldest["bytes"] < size, "a segment has a header, too"
    filled = int.from_bytes(build(["a", "b"], limits.BLOOM_BYTES_MIN).bits, "little").bit_count()
    assert oldest == {
        "firstOffset": 0,
        "nextOffset": 2,
        "events": 2,
        "bytes": oldest["bytes"],
        "codec": "none",
        "stored": "2026-01-01T12:00:01.000Z",
        "timeFrom": "2025-12-31T12:00:00.000Z",
        "timeTo": "2025-12-31T12:00:01.500Z",
        "bloomBytes": limits.BLOOM_BYTES_MIN,
        "bloomHashes": oldest["bloomHashes"],
        "bloomFilled": round(filled / (8 * limits.BLOOM_BYTES_MIN), 4),
    }
    assert oldest["bytes"] > CHUNK_HEADER_BYTES + limits.BLOOM_BYTES_MIN
    assert 0 < oldest["bloomFilled"] < 1
    assert (newest["codec"], newest["unfiltered"], newest["events"]) == ("zstd", True, 1)
    assert not {"bloomBytes", "timeFrom", "timeTo", "decision"} & newest.keys()


def test_all_that_is_there_is_counted(log: LogFixture) -> None:
    log.append("a", "b")
    log.append("c")
    answer = log.listed()
    assert answer["partitions"] == [{"partition": 0, "firstOffset": 0, "nextOffset": 3}]
    sizes = sum(one["bytes"] for one in answer["items"])
    assert answer["totals"] == {"chunks": 2, "events": 3, "bytes": sizes}
    assert (answer["partition"], answer["filterValue"]) == (0, "ce.type")
    assert "before" not in answer
    assert "skips" not in answer


def test_an_empty_log(log: LogFixture) -> None:
    answer = log.listed()
    assert (answer["items"], answer["totals"]) == ([], {"chunks": 0, "events": 0, "bytes": 0})


def test_nothing_of_an_event_is_shown_and_nothing_by_broker(log: LogFixture) -> None:
    Admission(log.store).create(Kind.BROKER, broker("other"))
    log.identities = log.store.snapshot().brokers
    log.append("com.secret.type", of="default/other")
    log.append("com.secret.type", of="default/default")
    for filter_ in ("", 'ce.type == "mine"'):
        answer = json.dumps(log.listed(broker="default/default", filter=filter_))
        assert "secret" not in answer
        assert "other" not in answer
        assert len(json.loads(answer)["items"]) == 2


def test_no_body_is_read(log: LogFixture) -> None:
    """A body that is damaged from end to end is no matter: only headers and Bloom filters are looked at."""
    log.append("a")
    (_, path) = list_segments(log.data / "log" / "0")[0]
    data = bytearray(path.read_bytes())
    begin = data.index(b"HGC1") + CHUNK_HEADER_BYTES + limits.BLOOM_BYTES_MIN
    data[begin:] = bytes(len(data) - begin)
    path.write_bytes(data)
    (one,) = log.listed(filter='ce.type == "a"')["items"]
    assert one["decision"] == {"read": True, "by": "value", "values": ["a"]}


# --- pages ----------------------------------------------------------------------------------------


def test_pages_by_offset_are_the_whole_log(log: LogFixture) -> None:
    for number in range(25):
        log.append(*["a"] * (number % 3 + 1))
    log.writer._roll()
    for _ in range(5):
        log.append("b")
    whole = [(one["firstOffset"], one["nextOffset"]) for one in log.listed()["items"]]
    assert len(whole) == 30
    assert [first for first, _ in whole[:-1]] == [behind for _, behind in whole[1:]], "without a gap"
    found, before = [], None
    while True:
        page = log.listed(limit=7, **({} if before is None else {"before": before}))
        assert len(page["items"]) <= 7
        found += [(one["firstOffset"], one["nextOffset"]) for one in page["items"]]
        if "before" not in page:
            break
        before = page["before"]
    assert found == whole
    first, behind = whole[3]
    assert log.listed(before=behind)["items"][0]["firstOffset"] == first
    (inside,) = log.listed(before=1, limit=1)["items"]
    assert inside["firstOffset"] == 0


def test_an_answer_has_an_end(log: LogFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "CHUNKS_SHOWN_MAX", 3)
    for _ in range(5):
        log.append("a")
    answer = log.listed()
    assert [one["firstOffset"] for one in answer["items"]] == [4, 3, 2]
    assert answer["before"] == 2
    status, refused = log.ask(limit=4)
    assert (status, refused["message"]) == (400, "limit '4' is not in 1..3 (hint: limit=3)")


def test_what_retention_took_is_not_shown(log: LogFixture) -> None:
    log.append("a")
    log.writer._roll()
    log.append("b")
    retain(log.writer, now_us=log.now_us, floor_offset=1 << 40, bytes_max=1)
    answer = log.listed()
    assert [one["firstOffset"] for one in answer["items"]] == [1]
    assert answer["partitions"] == [{"partition": 0, "firstOffset": 1, "nextOffset": 2}]
    assert "before" not in answer


def test_without_a_number_it_is_the_first_partition_with_events(log: LogFixture) -> None:
    with log.opened(3) as other:
        log.writer, first = other, log.writer
        log.append("b")
        log.writer = first
    answer = log.listed()
    assert (answer["partition"], len(answer["items"])) == (3, 1)
    assert log.listed(partition=0)["items"] == []


def test_another_partition(log: LogFixture) -> None:
    log.append("a")
    with log.opened(1) as other:
        log.writer, first = other, log.writer
        log.append("b", "b")
        log.append("b")
        log.writer = first
    assert [one["partition"] for one in log.listed()["partitions"]] == [0, 1]
    assert log.listed()["totals"]["events"] == 1
    assert log.listed(partition=1)["totals"] | {"bytes": 0} == {"chunks": 2, "events": 3, "bytes": 0}
    status, answer = log.ask(partition=7)
    assert status == 404
    assert "there are 0, 1" in answer["message"]


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "0"},
        {"limit": "many"},
        {"before": "-1"},
        {"before": "1" * 30},
        {"before": str(1 << 63)},
        {"partition": "x"},
        {"partition": "¹"},
        {"broker": "orders"},
        {"broker": "a/b/c"},
        {"broker": "/b"},
    ],
)
def test_what_makes_no_sense_is_refused(log: LogFixture, query: dict[str, str]) -> None:
    log.append("a")
    status, answer = log.ask(**query)
    assert status == 400
    assert "hint" in answer["message"]


# --- filters --------------------------------------------------------------------------------------


def test_a_filter_says_which_chunks_are_read_and_by_which_value(log: LogFixture) -> None:
    log.append("order.paid", "order.sent")
    log.append("user.created")
    log.append("order.paid")
    answer = log.listed(filter='ce.type in ["order.paid", "order.lost"]')
    paid, user, both = (one["decision"] for one in answer["items"])
    assert paid == both == {"read": True, "by": "value", "values": ["order.paid"]}
    assert user == {"read": False, "by": "value"}
    totals, sizes = answer["totals"], [one["bytes"] for one in answer["items"]]
    assert (totals["chunks"], totals["chunksRead"]) == (3, 2)
    assert (totals["bytes"], totals["bytesRead"]) == (sum(sizes), sizes[0] + sizes[2])
    assert "order.lost" in answer["skips"]


def test_times_and_events_without_a_value_decide_too(log: LogFixture) -> None:
    log.append("a", time_us=NOON_US)
    log.append(None, time_us=NOON_US + 2 * DAY_US)
    day = rfc3339.text(NOON_US + DAY_US)
    answer = log.listed(filter=f'ce.time > timestamp("{day}")')
    assert [one["decision"] for one in answer["items"]] == [
        {"read": True, "by": "any"},
        {"read": False, "by": "time"},
    ]
    answer = log.listed(filter=f'publish_time > timestamp("{day}")')
    assert [one["decision"] for one in answer["items"]] == [{"read": False, "by": "stored"}] * 2
    assert read(log.listed(filter="data.total > 5")) == [True, True]
    assert read(log.listed(filter='ce.type == "a"')) == [False, True]


def test_the_broker_says_what_filter_values_are(log: LogFixture) -> None:
    Admission(log.store).create(Kind.BROKER, broker("tenants", log={"filterValue": "tenant"}))
    log.identities = log.store.snapshot().brokers
    log.append("acme", of="default/tenants")
    log.append("umbrella", of="default/tenants")
    answer = log.listed(broker="default/tenants", filter='ce.tenant == "acme"')
    assert (answer["filterValue"], read(answer)) == ("ce.tenant", [False, True])
    assert read(log.listed(filter='ce.tenant == "acme"')) == [True, True], "of types it says nothing"
    log.append(None, of="default/tenants")
    (newest, *_) = log.listed(broker="default/tenants", filter="!has(ce.tenant)")["items"]
    assert newest["decision"]["read"]
    status, _ = log.ask(broker="default/nosuch")
    assert status == 404


def test_every_decision_is_the_readers_own(log: LogFixture) -> None:
    """The scan of the same filter reads as many chunks as the list says."""
    for number in range(40):
        log.append(f"type-{number % 7}", f"type-{number % 5}", time_us=NOON_US + number * DAY_US)
    for text in ('ce.type == "type-6"', f'ce.time < timestamp("{rfc3339.text(NOON_US + 9 * DAY_US)}")', "true"):
        query = Query(log.identities["default/default"], filter_value_rule("type"), cel=condition(text, "filter"))
        scan = Scan(ChunkLog(LogDirectory(log.data / "log", "stop")), query, {0: 0})
        while not scan.at_end():
            scan.step(1_000)
        scan.close()
        totals = log.listed(filter=text)["totals"]
        assert (totals["chunksRead"], totals["chunks"]) == (
            scan.counters.chunks_read,
            scan.counters.chunks_read + scan.counters.chunks_skipped,
        )


def test_a_filter_that_is_none_is_refused_with_its_place(log: LogFixture) -> None:
    status, answer = log.ask(filter='ce.type = "a"')
    assert status == 422
    assert answer["details"]["caret"]
    log.append("a")
    log.append("b")
    assert read(log.listed(filter='{"cesql": "type = \'a\'"}')) == [False, True]


# --- damage ---------------------------------------------------------------------------------------


def test_damage_is_shown_and_the_others_follow(log: LogFixture) -> None:
    for _ in range(5):
        log.append("a", "a")
    (_, path) = list_segments(log.data / "log" / "0")[0]
    data = bytearray(path.read_bytes())
    second = data.index(b"HGC1", data.index(b"HGC1") + 4)
    data[second + 20] ^= 1  # its header
    fourth = data.index(b"HGC1", data.index(b"HGC1", second + 4) + 4)
    data[fourth + CHUNK_HEADER_BYTES + 3] ^= 1  # its Bloom filter
    path.write_bytes(data)
    answer = log.listed(filter='ce.type == "a"')
    assert [(one["firstOffset"], one["nextOffset"], one.get("damage")) for one in answer["items"]] == [
        (8, 10, None),
        (6, 8, "the checksum of the filter is wrong"),
        (4, 6, None),
        (2, 4, "the chunk header's checksum is wrong"),
        (0, 2, None),
    ]
    assert (answer["totals"]["chunks"], answer["totals"]["events"]) == (3, 6)


def test_a_segment_whose_header_is_damaged_is_one_entry(log: LogFixture) -> None:
    log.append("a", "a")
    log.writer._roll()
    log.append("b")
    log.append("b")
    data = bytearray((path := list_segments(log.data / "log" / "0")[1][1]).read_bytes())
    data[1] ^= 1
    path.write_bytes(data)
    entries = list(entries_newest_first(Partition(log.data / "log" / "0", "skip")))
    assert [(one.first_offset, one.next_offset, one.header is None) for one in entries] == [
        (2, 4, True),
        (0, 2, False),
    ]


# --- Kafka, rights --------------------------------------------------------------------------------


def test_of_a_log_in_kafka_it_says_so_in_words(log: LogFixture) -> None:
    status, answer = log.ask(log.app(on_kafka=True))
    assert status == 404
    assert "in Kafka, which knows no chunks" in answer["message"]


def held(*roles: str, namespace: str = "") -> RbacPolicy:
    """A policy by which `ann` has these roles, in a namespace or everywhere."""
    rules = {RoleKey(role): tuple(access_rules(ROLES[role])) for role in roles}
    ann = (BindingSubject(SubjectKind.USER, "ann"),)
    return RbacPolicy(rules, [Binding(role, namespace, RoleKey(role), ann) for role in roles])


def test_no_role_of_a_team_lists_chunks() -> None:
    """Not even one that is bound for all namespaces; and no role in a namespace gives what is of the whole server."""
    wanted = wanted_by_request("GET", "/apis/headgate.dev/v1/chunks")
    assert wanted == Attributes("list", "headgate.dev", "chunks")
    ann = authenticated("ann")
    for role in ("headgate:viewer", "headgate:editor", "headgate:admin", "headgate:publisher", "headgate:consumer"):
        assert not held(role).allowed(ann, wanted).allowed
    assert held("cluster-admin").allowed(ann, wanted).allowed
    assert not held("cluster-admin", namespace="default").allowed(ann, wanted).allowed


def test_a_broker_that_may_not_be_read_is_not_told(log: LogFixture) -> None:
    """Its rule of filter values is its own: who may list chunks alone gets the same answer for none."""
    authorizer = RbacAuthorizer()
    app, ann = log.app(authorizer), authenticated("ann")
    log.append("a")
    there, absent = (log.ask(app, ann, broker=f"default/{name}") for name in ("default", "nosuch"))
    assert there[0] == absent[0] == 403
    assert there[1]["message"].replace('"default" is', '"nosuch" is', 1) == absent[1]["message"]
    assert log.ask(app, ann)[0] == 200
    authorizer.policy = held("headgate:viewer", namespace="default")
    assert log.ask(app, ann, broker="default/default")[0] == 200


# --- command --------------------------------------------------------------------------------------


def test_the_command_shows_the_same(log: LogFixture) -> None:
    log.append("order.paid", time_us=NOON_US)
    log.append("user.created")
    answer = json.loads(told("log", "chunks", log.data, "--json", "--filter", 'ce.type == "order.paid"'))
    served = log.listed(filter='ce.type == "order.paid"')
    del served["partitions"]
    assert answer == served
    lines = told("log", "chunks", log.data, "--filter", 'ce.type == "order.paid"').splitlines()
    assert lines[0].split() == [
        "FIRST",
        "NEXT",
        "EVENTS",
        "BYTES",
        "CODEC",
        "STORED",
        *["EVENT", "TIMES", "BLOOM", "FULL", "FILTER"],
    ]
    assert lines[1].endswith("skipped: value")
    assert lines[2].endswith('read: "order.paid"')
    assert lines[3].startswith(f"{log.data / 'log' / '0'}: 2 chunks, 2 events, ")
    assert "FILTER" not in told("log", "chunks", log.data)
    shown = headgate("log", "chunks", log.data, "--limit", 1)
    assert "--before 1 shows older ones" in shown.stderr
    assert told("log", "chunks", log.data, "--before", 1).splitlines()[1].startswith("0 ")


def test_the_command_says_what_is_wrong(log: LogFixture, tmp_path: Path) -> None:
    log.append("a")
    for words in (("--filter", "ce.type ="), ("--filter-value", "ce.type +")):
        done = headgate("log", "chunks", log.data, *words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ")
    assert read(
        json.loads(
            told("log", "chunks", log.data, "--json", "--filter", 'ce.tenant == "b"', "--filter-value", "tenant")
        )
    ) == [False]

"""Why was it not delivered? Every answer from files that look as the processes leave them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.deadletters.store import DeadLetterStore, StoredDeadLetter
from headgate.delivery.cursors import CursorChange, CursorStore, TargetCursor, Tried
from headgate.delivery.journal import Journal, Origin
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.filter.compile.plan import Verdict
from headgate.inspect import find as find_module
from headgate.inspect.api import InspectApi
from headgate.inspect.catalogue import Catalogues
from headgate.inspect.file_records import DispatcherRecords, FileRecords
from headgate.inspect.find import EventSearch, FoundEvent, MatchRow
from headgate.inspect.log_follower import LogFollower
from headgate.inspect.why import EventExplanation, EventFate, Why, condition
from headgate.log.directory import LogDirectory, Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.objects.api.admission import Admission
from headgate.objects.store.reconciler import Reconciler
from headgate.objects.store.store import Store
from headgate.outbox.writer import OUTBOX_SCHEMA, RowGroup, encode_chunk
from headgate.scan.chunks import ChunkLog
from headgate.storage.files import DispatcherDirectory
from headgate_api import limits
from headgate_api.event import rfc3339
from headgate_api.event.model import DataKind, Event
from headgate_api.objects.errors import ObjectNotFoundError
from headgate_api.objects.kinds import Kind, ObjectKey, Trigger
from headgate_cli.inspection import _entry_text
from tests.objects.support import broker, trigger

CEL = 'ce.type == "order" && data.amount > 100'


def event(id_: str, type_: str = "order", **data: object) -> Event:
    return Event("1.0", id_, "/shop", type_, data_kind=DataKind.JSON, data=json.dumps(data).encode())


@dataclass
class World:
    """A data directory, and what writes it."""

    data: Path
    store: Store
    now_us: int

    def __post_init__(self) -> None:
        self.log = self._writer("log/0", EVENT_SCHEMA)
        self.outbox = self._writer("dispatcher/0/outbox", OUTBOX_SCHEMA)
        self.cursors = CursorStore(self.data / "dispatcher/0/dispatch.db")
        self.letters = DeadLetterStore(self.data / "dispatcher/0/deadletters.db")

    def _writer(self, name: str, schema: Any) -> PartitionWriter:
        return PartitionWriter(Partition(self.data / name, "stop"), schema, clock_us=lambda: self.now_us)

    def close(self) -> None:
        for one in (self.log, self.outbox, self.cursors, self.letters, self.store):
            one.close()

    def accept(self, *events: Event, broker: str = "") -> int:
        self.now_us += 1_000
        broker = broker or self.store.snapshot().brokers["default/default"]
        return self.log.append(
            Encoded(to_batch([StoredEvent(broker, one) for one in events]), [one.type for one in events])
        )

    def match(self, offset: int, verdict: Verdict = Verdict.MATCH, *, target: int | None = None) -> int:
        """An outbox row; returns its position."""
        self.now_us += 1_000
        row_groups = [RowGroup(0, 1, [(offset, target or self.target, int(verdict))])]
        return self.outbox.append(encode_chunk(row_groups, {0: (offset + 1, 1)}))

    def passed(self, offset: int) -> None:
        self.now_us += 1_000
        self.outbox.append(encode_chunk([], {0: (offset, 1)}))

    def handed(self, position: int, *behind: TargetCursor) -> None:
        self.cursors.flush(CursorChange(position, {}, list(behind), []))

    @property
    def target(self) -> int:
        return next(target.id for target in self.store.snapshot().targets.values() if target.name == "default/t")

    def ask(self, id_: str, name: str = "t", **more: Any) -> EventExplanation:
        key = ObjectKey(Kind.TRIGGER, "default", name)
        return Why(FileRecords(self.data, LogDirectory(self.data / "log", "stop")), self.store).of_trigger(
            key, EventSearch(id_, **more)
        )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    store = Store.open(tmp_path / "control.db")
    Admission(store).create(Kind.TRIGGER, trigger("t", filter={"cel": CEL}))
    store.counters.activate(store.desired_generation())
    reconciler = Reconciler(store)
    reconciler.step()
    reconciler.step()
    made = World(tmp_path, store, time.time_ns() // 1_000 + 5_000_000)
    yield made
    made.close()


def test_an_event_that_never_came(world: World) -> None:
    assert world.ask("1").fate is EventFate.NOT_STORED
    world.accept(event("2"))
    answer = world.ask("1")
    assert answer.fate is EventFate.NOT_STORED
    assert "no longer kept" in answer.message


def test_a_trigger_that_is_not_there(world: World) -> None:
    with pytest.raises(ObjectNotFoundError):
        world.ask("1", "nosuch")


def test_not_matched_yet(world: World) -> None:
    world.accept(event("1", amount=200))
    assert world.ask("1").fate is EventFate.NOT_MATCHED_YET


def test_filter_false_with_the_part_that_decided(world: World) -> None:
    world.accept(event("1", amount=7))
    world.passed(1)
    answer = world.ask("1")
    assert answer.fate is EventFate.FILTER_FALSE
    assert answer.trace is not None
    part = answer.trace.decided
    assert answer.trace.text[part.start : part.end] == "data.amount > 100"
    assert answer.found is not None
    assert (answer.found.partition, answer.found.offset) == (0, 0)


def test_a_filter_is_asked_as_of_when_the_event_was_stored(world: World) -> None:
    early = 'ce.type == "order" && publish_time < timestamp("2020-01-01T00:00:00Z")'
    Admission(world.store).create(Kind.TRIGGER, trigger("early", filter={"cel": early}))
    world.store.counters.activate(world.store.desired_generation())
    reconciler = Reconciler(world.store)
    reconciler.step()
    reconciler.step()
    world.accept(event("1", amount=7))
    world.passed(1)
    answer = world.ask("1", "early")
    assert answer.fate is EventFate.FILTER_FALSE
    assert answer.trace is not None
    part = answer.trace.decided
    assert answer.trace.text[part.start : part.end].startswith("publish_time < ")


@pytest.mark.parametrize("told", [True, False])
def test_filter_error_told_by_the_matcher_or_silent(world: World, told: bool) -> None:
    world.accept(event("1"))
    if told:
        world.handed(world.match(0, Verdict.ERROR) + 2)
    else:
        world.passed(1)
    answer = world.ask("1")
    assert answer.fate is EventFate.FILTER_ERROR
    assert "amount" in answer.message


def test_a_transform_that_makes_nothing_of_the_event(world: World) -> None:
    change = {"spec": {"transform": '{"type": data.name}'}}
    Admission(world.store).merge(ObjectKey(Kind.TRIGGER, "default", "t"), change)
    world.accept(event("1", amount=200))
    world.handed(world.match(0) + 2)
    remember_entries(world, end="error")
    answer = world.ask("1")
    assert answer.fate is EventFate.FILTER_ERROR
    assert "the transform is an error" in answer.message
    assert "name" in answer.message


def test_matched_and_waiting_in_each_place(world: World) -> None:
    world.accept(event("1", amount=200))
    position = world.match(0)
    # Not handed out yet, handed out, failed twice, waiting in the backlog.
    assert world.ask("1").fate is EventFate.UNDELIVERED
    world.handed(position + 2, TargetCursor(world.target, None, (position,)))
    assert world.ask("1").attempts is not None
    due_us = world.now_us + 60_000_000
    world.handed(position + 2, TargetCursor(world.target, None, (position,), (Tried(position, 2, due_us, 0),)))
    answer = world.ask("1")
    assert answer.fate is EventFate.UNDELIVERED
    assert answer.attempts is not None
    assert (answer.attempts.failed, answer.attempts.next_us) == (2, due_us)
    assert "2 attempts failed" in answer.message
    world.handed(position + 2, TargetCursor(world.target, position, ()))
    assert world.ask("1").fate is EventFate.UNDELIVERED


def test_ended(world: World) -> None:
    world.accept(event("1", amount=200))
    position = world.match(0)
    world.handed(position + 2)
    answer = world.ask("1")
    assert answer.fate is EventFate.ENDED
    assert "delivered" in answer.message


def remember(world: World, *ends: str, target: int | None = None) -> None:
    """What the dispatcher's journal says of the event at 0:0: results of ends, "" for a good attempt."""

    async def work() -> None:
        journal = Journal(DispatcherDirectory.of(world.data, 0).attempts, clock_us=lambda: world.now_us)
        for number, result in enumerate(ends, 1):
            if result:
                journal.end(0, 0, target or world.target, result)
            else:
                journal.attempt(0, 0, target or world.target, number, 202, "")
        journal.attempt(0, 0, world.target, 9, 503, "503")
        journal.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        (["dead_lettered"], "given up; its dead letter was discarded"),
        (["failed"], "given up and dropped"),
        (["gone"], "dropped"),
        (["lost"], "dropped"),
        ([""], "delivered at attempt 1"),
        (["failed", ""], "delivered at attempt 2"),
        ([], "delivered, or given up and sent to its dead-letter sink"),
    ],
)
def test_how_it_ended_as_long_as_that_is_known(world: World, ends: list[str], says: str) -> None:
    Admission(world.store).create(
        Kind.TRIGGER, trigger("sunk", filter={"cel": CEL}, delivery={"deadLetterSink": {"uri": "http://sink.example/"}})
    )
    world.store.counters.activate(world.store.desired_generation())
    Reconciler(world.store).step()
    sunk = next(target.id for target in world.store.snapshot().targets.values() if target.name == "default/sunk")
    world.accept(event("1", amount=200))
    world.handed(world.match(0, target=sunk) + 2)
    remember(world, "failed", "")  # another target's
    remember(world, *ends, target=sunk)
    answer = world.ask("1", "sunk")
    assert answer.fate is EventFate.ENDED
    assert says in answer.message
    assert answer.result == ((ends[-1] or "delivered") if ends else "")


def test_an_end_is_known_longer_than_the_outbox_and_the_filter(world: World) -> None:
    world.accept(event("1", amount=200))
    world.passed(1)
    assert world.ask("1").fate is EventFate.CHANGED_SINCE
    remember(world, "")
    assert world.ask("1").fate is EventFate.ENDED
    remember(world, "filtered")
    world.handed(world.match(0, Verdict.CANDIDATE) + 2)
    assert world.ask("1").fate is EventFate.CHANGED_SINCE


def test_asked_while_the_event_is_being_matched(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    look = DispatcherRecords.rows

    def look_then_match(self: DispatcherRecords, found: FoundEvent) -> list[MatchRow]:
        rows = look(self, found)
        world.match(found.offset)
        return rows

    monkeypatch.setattr(DispatcherRecords, "rows", look_then_match)
    world.accept(event("1", amount=200))
    assert world.ask("1").fate is EventFate.NOT_MATCHED_YET
    assert world.ask("1").fate is EventFate.UNDELIVERED


def test_a_clock_that_was_set_back_hides_no_row(world: World) -> None:
    world.accept(event("1", amount=200))
    world.now_us -= 1_800_000_000
    world.handed(world.match(0) + 2)
    assert world.ask("1").fate is EventFate.ENDED


def test_a_candidate_that_cel_refused(world: World) -> None:
    world.accept(event("1", amount=7))
    world.handed(world.match(0, Verdict.CANDIDATE) + 2)
    assert world.ask("1").fate is EventFate.FILTER_FALSE


def test_a_dead_letter_with_the_last_answer(world: World) -> None:
    one = event("1", amount=200)
    world.accept(one)
    position = world.match(0)
    world.handed(position + 2)
    letter = StoredDeadLetter(
        target=world.target,
        position=position,
        partition=0,
        offset=0,
        trigger="default/t",
        broker="default/default",
        event=one,
        died_us=world.now_us,
        reason="400",
        destination="http://127.0.0.1:9/sink",
        code=400,
        data=b"no such customer",
        attempts=1,
    )
    world.letters.apply([letter], [], [])
    answer = world.ask("1")
    assert answer.fate is EventFate.DEAD_LETTER
    assert answer.attempts is not None
    assert (answer.attempts.code, answer.attempts.answer) == (400, "no such customer")


def test_another_broker_and_ids_that_repeat(world: World) -> None:
    world.accept(event("1", amount=200), broker="default/other/1")
    assert world.ask("1").fate is EventFate.OTHER_BROKER
    world.accept(event("1", amount=1))
    world.accept(event("1", amount=2), broker="default/other/1")
    world.passed(3)
    answer = world.ask("1")
    assert answer.found is not None
    assert (answer.fate, answer.found.offset) == (EventFate.FILTER_FALSE, 1)
    assert world.ask("1", source="/elsewhere").fate is EventFate.NOT_STORED


def test_an_event_of_another_namespace_is_nothing_to_who_asks(world: World) -> None:
    """Not even whether there is one, by whatever a client makes of `next`."""
    Admission(world.store).create(Kind.BROKER, broker("mine"))
    Admission(world.store).create(Kind.TRIGGER, trigger("nowhere", broker="absent"))
    world.accept(event("1", secret=7), broker="other/secret/1")
    for path in ("triggers/t/why", "triggers/nowhere/why", "brokers/mine/why"):
        for query in ("id=1", "id=1&next=0:0/0:0"):
            status, answer = call(world, query, path)
            assert (status, answer["fate"]) == (200, "not-stored"), (path, query)
            assert not {"event", "next"} & answer.keys()
    for query in ("id=1", "id=1&next=0:0/0:0"):
        assert "next" not in call(world, query, "brokers/mine/trace")[1]


def test_an_earlier_broker_of_the_name(world: World) -> None:
    """What it has accepted is none of the next one's business, and its trigger gets the next one's."""
    world.accept(event("1", amount=200))
    key = ObjectKey(Kind.BROKER, "default", "default")
    world.store.delete(key)
    assert world.ask("1").fate is EventFate.NOT_MATCHED_YET
    Admission(world.store).create(Kind.BROKER, broker("default"))
    answer = world.ask("1")
    says = "an earlier broker default/default accepted the event, and has been deleted"
    assert (answer.fate, answer.message) == (EventFate.OTHER_BROKER, says)
    world.accept(event("1", amount=200))
    assert world.ask("1").fate is EventFate.NOT_MATCHED_YET


def test_created_later(world: World) -> None:
    world.accept(event("1", amount=200))
    world.passed(1)
    stored = world.store.get(ObjectKey(Kind.TRIGGER, "default", "t"))
    later = msgspec.structs.replace(stored.metadata, creation_timestamp="2100-01-01T00:00:00Z")
    body = msgspec.json.encode(msgspec.structs.replace(stored, metadata=later))
    with world.store._database.write() as connection:
        connection.execute("UPDATE objects SET body = ? WHERE kind = 'Trigger'", (body,))
    assert world.ask("1").fate is EventFate.CREATED_LATER


def test_not_ready_then_and_changed_since(world: World) -> None:
    key = ObjectKey(Kind.TRIGGER, "default", "t")
    made = world.store.get(key)
    assert isinstance(made, Trigger)
    ready = condition(made, "Ready")
    assert ready is not None
    ready_us = rfc3339.micros(ready.last_transition_time) or 0
    now_us, world.now_us = world.now_us, ready_us + 998_000
    world.accept(event("1", amount=200))
    world.now_us = now_us
    world.accept(event("2", amount=200))
    world.passed(2)
    # It has had one filter only: the first came in the second in which it became Ready, and before it was.
    assert world.ask("1").fate is EventFate.NOT_READY
    assert world.ask("2").fate is EventFate.CHANGED_SINCE
    Admission(world.store).merge(key, {"spec": {"filter": {"cel": "data.amount > 150"}}})
    answer = world.ask("2")  # it was Ready then, with another filter
    assert answer.fate is EventFate.NOT_READY
    assert "was not Ready, or had another filter, when it was stored" in answer.message


def test_searches_a_bounded_piece_and_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(20):
        world.accept(event(str(n), amount=1))
    world.passed(20)
    monkeypatch.setattr(find_module, "WHY_CHUNKS_MAX", 6)
    answer, calls = world.ask("0"), 1
    while answer.fate is EventFate.NOT_FOUND:
        answer, calls = world.ask("0", before=answer.next), calls + 1
    assert (answer.fate, calls) == (EventFate.FILTER_FALSE, 4)
    newest = world.ask("19")
    assert newest.found is not None
    assert world.ask("0", since_us=newest.found.append_time_us).fate is EventFate.NOT_STORED
    assert limits.WHY_CHUNKS_MAX > 6


def test_a_search_gets_on_however_slow_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(3):
        world.accept(event(str(n), amount=1))
    world.passed(3)
    monkeypatch.setattr(find_module, "WHY_SECONDS_MAX", -1.0)
    answer, calls = world.ask("0"), 1
    while answer.fate is EventFate.NOT_FOUND:
        assert answer.next
        assert answer.searched_to_us
        answer, calls = world.ask("0", before=answer.next), calls + 1
    assert (answer.fate, calls) == (EventFate.FILTER_FALSE, 3)


def test_an_event_of_another_broker_is_remembered_over_all_pieces(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.accept(event("9", amount=0), event("9", amount=1), broker="default/other/1")
    world.accept(event("x", amount=1))
    for n in range(4):
        world.accept(event(str(n), amount=1))
    world.accept(event("9", amount=2), broker="default/other/1")
    monkeypatch.setattr(find_module, "WHY_CHUNKS_MAX", 2)
    query, pieces = "id=9", 0
    while (answer := call(world, query)[1])["fate"] == "not-found-yet":
        query, pieces = f"id=9&next={answer['next']}", pieces + 1
    assert (answer["fate"], answer["event"]["offset"], pieces) == ("other-broker", 7, 3)
    for place in ("0:2", "0:99", "7:0"):  # another event, and none
        status, answer = call(world, f"id=9&next=0:0/{place}")
        assert (status, answer["fate"]) == (200, "not-stored")


def call(world: World, query: str, path: str = "triggers/t/why") -> tuple[int, dict[str, Any]]:
    """The HTTP handler, without a server."""
    from starlette.applications import Starlette

    from headgate.objects.api.http import ERROR_HANDLERS

    log = LogDirectory(world.data / "log", "stop")
    records, catalogues = FileRecords(world.data, log), Catalogues(LogFollower(ChunkLog(log)), world.store)
    app = Starlette(
        routes=list(InspectApi(lambda _: records, world.store, catalogues).routes()),
        exception_handlers=ERROR_HANDLERS,
    )
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    whole = f"/apis/eventing.knative.dev/v1/namespaces/default/{path}"
    scope = {"type": "http", "method": "GET", "path": whole, "query_string": query.encode(), "headers": []}
    asyncio.run(app(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], json.loads(body)


def test_over_http(world: World) -> None:
    world.accept(event("1", amount=7))
    world.passed(1)
    status, answer = call(world, "id=1&source=/shop&since=2020-01-01T00:00:00Z")
    assert status == 200
    assert (answer["fate"], answer["trigger"], answer["event"]["offset"]) == ("filter-false", "default/t", 0)
    assert answer["event"]["event"]["data"] == {"amount": 7}
    assert answer["trace"]["outcome"] == "false"
    assert [part["decided"] for part in answer["trace"]["parts"]].count(True) == 1
    for query in ("", "id=", "id=1&since=yesterday", "id=1&next=x", "id=1&next=0:1/", "id=1&next=0:1/0:1,1:1"):
        status, answer = call(world, query)
        assert (status, answer["kind"]) == (400, "Status")


def remember_entries(world: World, *attempts: tuple[int, str, Origin], end: str = "", detail: str = "") -> None:
    """Attempts for the trigger in the journal: status, reason, origin; and an end of the delivery."""

    async def work() -> None:
        journal = Journal(DispatcherDirectory.of(world.data, 0).attempts, clock_us=lambda: world.now_us)
        for number, (status, reason, origin) in enumerate(attempts, 1):
            journal.attempt(0, 0, world.target, number, status, reason, origin, detail)
        if end:
            journal.end(0, 0, world.target, end)
        journal.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("attempts", "end", "says"),
    [
        ([(204, "", Origin.DELIVERY)], "", "delivered at attempt 1 (204 No Content)"),
        (
            [(503, "503", Origin.DELIVERY)],
            "failed",
            "given up and dropped; the last answer was 503 Service Unavailable",
        ),
        (
            [(400, "400", Origin.DELIVERY), (202, "", Origin.DEAD_LETTER)],
            "dead_lettered",
            "the dead-letter sink took its dead letter",
        ),
        (
            [(400, "400", Origin.DELIVERY), (500, "500", Origin.DEAD_LETTER), (202, "", Origin.REDRIVE)],
            "dead_lettered",
            "the subscriber, after a redrive, took its dead letter",
        ),
        ([(400, "400", Origin.DELIVERY)], "dead_lettered", "discarded"),
        ([(200, "", Origin.DELIVERY), (500, "500", Origin.REPLAY)], "", "replayed at"),
    ],
)
def test_the_last_status_and_what_took_a_dead_letter(
    world: World, attempts: list[tuple[int, str, Origin]], end: str, says: str
) -> None:
    world.accept(event("1", amount=200))
    world.handed(world.match(0) + 2)
    remember_entries(world, *attempts, end=end)
    answer = world.ask("1")
    assert answer.fate is EventFate.ENDED
    assert says in answer.message
    assert [(one.status, one.reason, one.origin) for one in answer.history if one.attempt] == attempts


def test_a_replay_of_an_event_that_was_not_matched_then(world: World) -> None:
    world.accept(event("1", amount=7))
    world.passed(1)
    remember_entries(world, (202, "", Origin.REPLAY))
    answer = world.ask("1")
    assert answer.fate is EventFate.FILTER_FALSE
    assert "replayed at" in answer.message
    assert "delivered (202 Accepted)" in answer.message


def test_an_attempt_that_failed_tells_its_status(world: World) -> None:
    world.accept(event("1", amount=200))
    position = world.match(0)
    remember_entries(world, (503, "503", Origin.DELIVERY))
    world.handed(position + 2, TargetCursor(world.target, None, (position,), (Tried(position, 1, world.now_us, 0),)))
    assert "the last answer was 503 Service Unavailable" in world.ask("1").message


def test_an_attempt_without_an_answer_tells_what_was_found(world: World) -> None:
    """Not only `certificate`: the sentence, the answer's fields and the lines of the command have why."""
    world.accept(event("1", amount=200))
    position = world.match(0)
    expired = "no connection: certificate has expired"
    remember_entries(world, (0, "certificate", Origin.DELIVERY), detail=expired)
    cursor = TargetCursor(world.target, None, (position,), (Tried(position, 1, world.now_us, 0),))
    world.handed(position + 2, cursor)
    said = "the certificate is not trusted: certificate has expired"
    assert said in world.ask("1").message
    _, answer = call(world, "id=1&source=/shop")
    assert answer["attempts"]["detail"] == answer["history"][0]["detail"] == "certificate has expired"
    assert _entry_text(answer["history"][0]) == f"attempt 1: no answer ({said}), failed (certificate)"
    _, timeline = call(world, "id=1", "brokers/default/timeline")
    assert said in next(one["says"] for one in timeline["timeline"] if one["what"] == "attempt")
    assert timeline["trace"]["matches"][0]["attempts"][0]["detail"] == "certificate has expired"


def test_all_triggers_of_a_broker_page_by_page(world: World) -> None:
    admission = Admission(world.store)
    for name, cel in (("all", "true"), ("none", "false"), ("wrong", "data.nosuch > 1")):
        admission.create(Kind.TRIGGER, trigger(name, filter={"cel": cel}))
    admission.create(Kind.TRIGGER, trigger("elsewhere", broker="other", filter={"cel": "true"}))
    world.store.counters.activate(world.store.desired_generation())
    reconciler = Reconciler(world.store)
    reconciler.step()
    world.now_us += 5_000_000
    targets = {target.name: target.id for target in world.store.snapshot().targets.values()}
    world.accept(event("1", amount=200))
    world.now_us += 1_000
    rows = [(0, targets["default/all"], int(Verdict.MATCH)), (0, targets["default/t"], int(Verdict.MATCH))]
    first = world.outbox.append(encode_chunk([RowGroup(0, 1, rows)], {0: (1, 1)}))
    world.handed(first + 3, TargetCursor(targets["default/t"], None, (first + 1,)))
    remember(world, "", target=targets["default/all"])
    status, answer = call(world, "id=1", "brokers/default/why")
    assert (status, answer["fate"], answer["event"]["offset"]) == (200, "stored", 0)
    expected = [("all", "ended"), ("none", "filter-false"), ("t", "undelivered"), ("wrong", "filter-error")]
    assert [(one["trigger"], one["fate"]) for one in answer["triggers"]] == expected
    names, after = [], ""
    while True:
        status, answer = call(world, f"id=1&limit=3&after={after}", "brokers/default/why")
        names += [one["trigger"] for one in answer["triggers"]]
        after = answer.get("after", "")
        if not after:
            break
    assert names == ["all", "none", "t", "wrong"]
    status, answer = call(world, "id=nobody", "brokers/default/why")
    assert (status, answer["fate"]) == (200, "not-stored")
    for query in ("id=1&limit=0", "id=1&limit=501", "id=1&limit=x"):
        assert call(world, query, "brokers/default/why")[0] == 400
    assert call(world, "id=1", "brokers/nosuch/why")[0] == 404


def test_a_trace_over_http(world: World) -> None:
    world.accept(event("1", amount=200))
    world.handed(world.match(0) + 2)
    remember_entries(world, (202, "", Origin.DELIVERY))
    status, answer = call(world, "id=1", "brokers/default/trace")
    assert status == 200
    (match,) = answer["trace"]["matches"]
    assert (match["kind"], match["name"], match["verdict"]) == ("Trigger", "default/t", "match")
    assert [(one["attempt"], one["status"], one["origin"]) for one in match["attempts"]] == [(1, 202, "delivery")]
    status, answer = call(world, f"id=1&next={answer['next']}", "brokers/default/trace")
    assert (status, "trace" in answer, "next" in answer) == (200, False, False)
    assert call(world, "id=1", "brokers/nosuch/trace")[0] == 404
    assert call(world, "", "brokers/default/trace")[0] == 400
